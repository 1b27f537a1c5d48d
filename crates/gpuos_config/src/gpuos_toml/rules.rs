//! `[[class]]`, `[[rule]]`, `[[reserve]]` and `[[power-domain]]`: who may run beside whom.
use gpuos_model::hostlist::expand;
use gpuos_model::reading::{Check, ConfigError, Place, quoted};
use gpuos_placement::rules::{Bond, Class, PowerDomain, Reserve, Rule, Rules, Tenant};
use toml::Spanned;

use super::raw::{RawApart, RawClass, RawFile, RawPower, RawReserve};

/// The most tables of one kind.
const MOST: usize = 256;
/// The most nodes or domains of a `[[reserve]]`.
const MOST_KEPT: i64 = 1 << 20;

/// The rules, and where the names in them stand.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct RuleTables {
    pub rules: Rules,
    pub nodes: Vec<(String, Place)>,
    pub levels: Vec<(String, Place)>,
    pub partitions: Vec<(String, Place)>,
}

impl RuleTables {
    pub fn read(check: Check, raw: &RawFile) -> Result<RuleTables, ConfigError> {
        let mut tables = RuleTables::default();
        bounded(check, "[[class]]", &raw.class)?;
        bounded(check, "[[rule]]", &raw.rule)?;
        bounded(check, "[[reserve]]", &raw.reserve)?;
        bounded(check, "[[power-domain]]", &raw.power_domain)?;
        for table in &raw.class {
            let class = tables.class(check, table)?;
            tables.rules.classes.push(class);
        }
        for table in &raw.rule {
            let rule = tables.rule(check, table)?;
            tables.rules.rules.push(rule);
        }
        for table in &raw.reserve {
            let reserve = tables.reserve(check, table)?;
            tables.rules.reserves.push(reserve);
        }
        for table in &raw.power_domain {
            let domain = tables.power(check, table)?;
            tables.rules.power.push(domain);
        }
        Ok(tables)
    }

    fn class(&mut self, check: Check, table: &Spanned<RawClass>) -> Result<Class, ConfigError> {
        let raw = table.get_ref();
        let key = check.need(table, "[[class]]", "name", &raw.name)?;
        let class = Class {
            name: class_name(check, "name", key)?,
            partition: self.partition(check, &raw.partition)?,
            account: name(check, "account", &raw.account)?,
            user: name(check, "user", &raw.user)?,
        };
        let conditions = |class: &Class| {
            let Class {
                partition,
                account,
                user,
                ..
            } = class.clone();
            (partition, account, user)
        };
        let mine = conditions(&class);
        let mut others = self.rules.classes.iter();
        match others.find(|other| conditions(other) == mine && mine != (None, None, None)) {
            Some(other) if other.name != class.name => {
                let message = format!(
                    "the jobs of class {} are those of class {} too; a job has one class",
                    class.name, other.name
                );
                Err(check.error(table, message))
            }
            _ => Ok(class),
        }
    }

    fn rule(&mut self, check: Check, table: &Spanned<RawApart>) -> Result<Rule, ConfigError> {
        let raw = table.get_ref();
        let tenants = [("account", Tenant::Account), ("user", Tenant::User)];
        let bond = match (&raw.never_beside, &raw.tenants) {
            (Some(pair), None) => {
                let [a, b] = &pair.get_ref()[..] else {
                    let given = format!("a list of {}", pair.get_ref().len());
                    let form = "two classes, [\"noisy\", \"training\"], or one twice";
                    return Err(check.refuse("never-beside", pair, given, form));
                };
                for class in [a, b] {
                    let name = class_name(check, "never-beside", class)?;
                    self.rules.check_class(&name).map_err(|known| {
                        let form = format!("a [[class]] of this file: {known}");
                        check.refuse("never-beside", class, quoted(&name), form)
                    })?;
                }
                Bond::Classes(a.get_ref().clone(), b.get_ref().clone())
            }
            (None, tenant @ Some(_)) => {
                Bond::Tenants(check.word("tenants", tenant, &tenants, Tenant::Account)?)
            }
            (None, None) => {
                let message = "[[rule]] says nothing; add never-beside = [\"A\", \"B\"] or tenants = \"account\"";
                return Err(check.error(table, message));
            }
            (Some(_), Some(_)) => {
                let message = "[[rule]] has never-beside and tenants; write two [[rule]] tables, one for each";
                return Err(check.error(table, message));
            }
        };
        let rule = Rule {
            bond,
            level: self.level(check, &raw.level)?.unwrap_or("node".into()),
            prefer: raw.prefer.unwrap_or(false),
            partition: self.partition(check, &raw.partition)?,
        };
        let same = |other: &&Rule| {
            same_jobs(&other.bond, &rule.bond)
                && (&other.level, &other.partition) == (&rule.level, &rule.partition)
        };
        let other = self
            .rules
            .rules
            .iter()
            .zip(1..)
            .find(|(other, _)| same(other));
        if let Some((other, number)) = other {
            let message = match other.prefer == rule.prefer {
                true => format!("[[rule]] {number} says the same; remove one of them"),
                false => format!(
                    "this contradicts [[rule]] {number}: one says never, the other prefer = true; \
                     remove one of them"
                ),
            };
            return Err(check.error(table, message));
        }
        Ok(rule)
    }

    fn reserve(
        &mut self,
        check: Check,
        table: &Spanned<RawReserve>,
    ) -> Result<Reserve, ConfigError> {
        let raw = table.get_ref();
        let (count, level) = match (&raw.nodes, &raw.domains) {
            (nodes @ Some(_), None) => {
                if let Some(level) = &raw.level {
                    let message = "level counts domains; write domains = instead of nodes =";
                    return Err(check.error(level, message));
                }
                (check.int("nodes", nodes, 1..=MOST_KEPT, 1)?, "node".into())
            }
            (None, domains @ Some(_)) => {
                check.need(table, "[[reserve]] with domains", "level", &raw.level)?;
                let level = self.level(check, &raw.level)?.unwrap_or_default();
                (check.int("domains", domains, 1..=MOST_KEPT, 1)?, level)
            }
            _ => {
                let message = "[[reserve]] is of so many nodes or of so many domains; write nodes = 4, or \
                               domains = 2 with level = \"leaf\"";
                return Err(check.error(table, message));
            }
        };
        check.need(table, "[[reserve]]", "gangs", &raw.gangs)?;
        let gangs = check.int("gangs", &raw.gangs, 2..=MOST_KEPT, 2)? as u32;
        let nodes = match &raw.part {
            Some(list) => self.nodes(check, "match", list)?,
            None => Vec::new(),
        };
        if level == "node" && !nodes.is_empty() && nodes.len() < count as usize {
            let message = format!("nodes = {count}, and match names only {}", nodes.len());
            return Err(check.error(table, message));
        }
        Ok(Reserve {
            count: count as u32,
            level,
            nodes,
            gangs,
            hard: raw.hard.unwrap_or(false),
            unless_shorter: minutes(check, "unless-shorter", &raw.unless_shorter)?,
        })
    }

    fn power(
        &mut self,
        check: Check,
        table: &Spanned<RawPower>,
    ) -> Result<PowerDomain, ConfigError> {
        let raw = table.get_ref();
        let key = check.need(table, "[[power-domain]]", "name", &raw.name)?;
        let name = check.name("name", key)?;
        let list = check.need(table, "[[power-domain]]", "nodes", &raw.nodes)?;
        let nodes = self.nodes(check, "nodes", list)?;
        for other in &self.rules.power {
            if other.name == name {
                let message = format!("power domain {name} is described twice; remove one");
                return Err(check.error(key, message));
            }
            if let Some(node) = nodes.iter().find(|node| other.nodes.contains(node)) {
                let message = format!(
                    "node {node} is in power domain {} too; keep it in one",
                    other.name
                );
                return Err(check.error(list, message));
            }
        }
        Ok(PowerDomain {
            name,
            nodes,
            watts: check.int("watts", &raw.watts, 1..=1 << 30, 0)? as u32,
        })
    }

    fn level(
        &mut self,
        check: Check,
        value: &Option<Spanned<String>>,
    ) -> Result<Option<String>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        let level = check.name("level", value)?;
        if level == "any" || level != level.to_ascii_lowercase() {
            let form =
                "\"node\", \"nvlink\" or a level of the fabric in lower case, such as \"leaf\"";
            return Err(check.refuse("level", value, quoted(&level), form));
        }
        self.levels.push((level.clone(), check.place(value)));
        Ok(Some(level))
    }

    fn partition(
        &mut self,
        check: Check,
        value: &Option<Spanned<String>>,
    ) -> Result<Option<String>, ConfigError> {
        let partition = name(check, "partition", value)?;
        if let (Some(value), Some(name)) = (value, &partition) {
            self.partitions.push((name.clone(), check.place(value)));
        }
        Ok(partition)
    }

    fn nodes(
        &mut self,
        check: Check,
        key: &str,
        list: &Spanned<String>,
    ) -> Result<Vec<String>, ConfigError> {
        let nodes = expand(list.get_ref()).map_err(|e| check.error(list, format!("{key}: {e}")))?;
        let place = check.place(list);
        self.nodes
            .extend(nodes.iter().map(|node| (node.clone(), place)));
        Ok(nodes)
    }
}

/// Whether two rules are about the same jobs; the order of two classes says nothing.
fn same_jobs(a: &Bond, b: &Bond) -> bool {
    match (a, b) {
        (Bond::Classes(a, b), Bond::Classes(c, d)) => (a, b) == (c, d) || (a, b) == (d, c),
        (a, b) => a == b,
    }
}

fn bounded<T>(check: Check, header: &str, tables: &[Spanned<T>]) -> Result<(), ConfigError> {
    match tables.get(MOST) {
        Some(table) => Err(check.error(table, format!("more than {MOST} {header}"))),
        None => Ok(()),
    }
}

fn name(
    check: Check,
    key: &str,
    value: &Option<Spanned<String>>,
) -> Result<Option<String>, ConfigError> {
    value
        .as_ref()
        .map(|value| check.name(key, value))
        .transpose()
}

/// The name of a class, as [`crate::options::parse_class`] makes it.
fn class_name(check: Check, key: &str, value: &Spanned<String>) -> Result<String, ConfigError> {
    let name = check.name(key, value)?;
    // off undoes --gpuos-class.
    match name == name.to_ascii_lowercase() && name != "off" {
        true => Ok(name),
        false => {
            let form = "the class in lower case, and another word than off";
            Err(check.refuse(key, value, quoted(&name), form))
        }
    }
}

/// A time such as `30m`, `2h` or `1d`, in minutes.
fn minutes(
    check: Check,
    key: &str,
    value: &Option<Spanned<String>>,
) -> Result<Option<u32>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let text = value.get_ref();
    let of = |unit: &str| match unit {
        "m" => Some(1),
        "h" => Some(60),
        "d" => Some(24 * 60),
        _ => None,
    };
    let time = text
        .len()
        .checked_sub(1)
        .filter(|at| text.is_char_boundary(*at))
        .and_then(|at| {
            let (number, unit) = text.split_at(at);
            let number = number
                .parse::<u32>()
                .ok()
                .filter(|number| (1..=9999).contains(number));
            Some(number? * of(unit)?)
        });
    match time {
        Some(minutes) => Ok(Some(minutes)),
        None => {
            let form = "a time from 1 to 9999 with its unit, such as \"30m\", \"2h\" or \"1d\"";
            Err(check.refuse(key, value, quoted(text), form))
        }
    }
}
