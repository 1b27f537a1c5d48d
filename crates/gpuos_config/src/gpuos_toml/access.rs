//! `[access]`: who is told what of other users' jobs; `[[forbid]]`: which options whose jobs may not use.
use gpuos_model::reading::{Check, ConfigError, Place, quoted};
use toml::Spanned;

use super::raw::{RawAccess, RawForbid};
use crate::access::{Access, Forbid, Forbidden};
use crate::options::OPTIONS;

/// The most operators.
const MOST: usize = 256;
/// The most `[[forbid]]` tables.
const MOST_RULES: usize = 256;

pub(super) fn access(check: Check, raw: &RawAccess) -> Result<Access, ConfigError> {
    let words = [("own", false), ("all", true)];
    let mut operators = Vec::new();
    let list = raw.operator_uids.as_deref().unwrap_or_default();
    if let Some(one) = list.get(MOST) {
        return Err(check.error(one, format!("operator-uids has more than {MOST} entries")));
    }
    for uid in list {
        // The last number is that of nobody at all, for the kernel.
        let number = u32::try_from(*uid.get_ref()).ok();
        let form = "numbers of users, such as [1001, 1002]";
        let number = number.filter(|number| *number != u32::MAX);
        operators
            .push(number.ok_or_else(|| check.refuse("operator-uids", uid, uid.get_ref(), form))?);
    }
    Ok(Access {
        operators,
        all: check.word("jobs", &raw.jobs, &words, false)?,
    })
}

/// The rules, and where partitions stand in them.
pub(super) fn forbidden(
    check: Check,
    tables: &[Spanned<RawForbid>],
) -> Result<(Forbidden, Vec<(String, Place)>), ConfigError> {
    if let Some(table) = tables.get(MOST_RULES) {
        return Err(check.error(table, format!("more than {MOST_RULES} [[forbid]]")));
    }
    let rules = tables.iter().map(|table| forbid(check, table));
    let forbidden = Forbidden(rules.collect::<Result<_, _>>()?);
    let partitions = tables.iter().filter_map(|table| {
        let name = table.get_ref().partition.as_ref()?;
        Some((name.get_ref().clone(), check.place(name)))
    });
    Ok((forbidden, partitions.collect()))
}

fn forbid(check: Check, table: &Spanned<RawForbid>) -> Result<Forbid, ConfigError> {
    let raw = table.get_ref();
    let list = check.need(table, "[[forbid]]", "options", &raw.options)?;
    let mut options = Vec::new();
    for option in list.get_ref() {
        let text = option.get_ref();
        let bare = text.strip_prefix("--").unwrap_or(text);
        // That a job asks for nothing of gpuos is everybody's right.
        let known = OPTIONS.iter().filter(|known| known.name != "gpuos");
        match known.clone().find(|known| known.name == bare) {
            Some(known) if options.contains(&known.name) => {
                let message = format!("options names --{bare} twice; remove one");
                return Err(check.error(option, message));
            }
            Some(known) => options.push(known.name),
            None => {
                let names: Vec<String> = known.map(|known| quoted(known.name)).collect();
                let form = format!("names of options: {}", names.join(", "));
                return Err(check.refuse("options", option, quoted(text), form));
            }
        }
    }
    if options.is_empty() {
        let form = "at least one option, such as [\"gpuos-mps\"]";
        return Err(check.refuse("options", list, "[]", form));
    }
    // Slurm's own names may hold more than those of gpuos.toml: they are compared as they are.
    let name = |key: &str, value: &Option<Spanned<String>>| {
        let Some(value) = value else { return Ok(None) };
        let text = value.get_ref();
        let plain = !text.is_empty() && text.len() <= 256 && !text.contains([',', '=']);
        match plain && !text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            true => Ok(Some(text.clone())),
            false => {
                let form = "one name as Slurm has it; a [[forbid]] table for each of several";
                Err(check.refuse(key, value, quoted(text), form))
            }
        }
    };
    Ok(Forbid {
        options,
        partition: name("partition", &raw.partition)?,
        account: name("account", &raw.account)?,
        qos: name("qos", &raw.qos)?,
        ask: check.text("ask", &raw.ask)?,
    })
}

#[cfg(test)]
mod tests {
    use crate::access::Standing;
    use crate::gpuos_toml::Config;

    fn read(text: &str) -> Result<Config, String> {
        Config::parse(text, "gpuos.toml").map_err(|e| e.to_string())
    }

    #[test]
    fn every_key_and_the_defaults() {
        let config = read("").unwrap();
        assert!(config.forbidden.0.is_empty() && config.access.operators.is_empty());
        assert!(!config.access.all);
        let text = "[access]\noperator-uids = [1001]\njobs = \"all\"\n\
                    [[forbid]]\noptions = [\"gpuos-mps\", \"--gpuos-power\"]\npartition = \"debug\"\n\
                    account = \"students\"\nqos = \"low\"\nask = \"hpc@example.org\"\n";
        let config = read(text).unwrap();
        assert!(config.access.all && config.access.operators == [1001]);
        let rule = &config.forbidden.0[0];
        assert_eq!(rule.options, ["gpuos-mps", "gpuos-power"]);
        assert_eq!(rule.ask, "hpc@example.org");
        let standing = Standing {
            partitions: &["debug"],
            account: "students",
            qos: "low",
        };
        assert!(config.forbidden.refuses("gpuos-mps", &standing).is_some());
        assert!(config.leaves_all_nodes());
        // One that Slurm does not have is told of.
        let strange = config.unknown_partitions(&["gpu"]);
        let strange: Vec<String> = strange.iter().map(ToString::to_string).collect();
        assert!(
            strange[0].contains("gpuos.toml:6:13: partition debug is not in slurm.conf"),
            "{strange:?}"
        );
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            (
                "[access]\noperator-uids = [-1]\n",
                "2:18: operator-uids = -1 is not accepted",
            ),
            ("[access]\njobs = \"some\"\n", "\"own\" or \"all\""),
            ("[access]\noperators = [1]\n", "there is no key `operators`"),
            (
                "[[forbid]]\npartition = \"x\"\n",
                "[[forbid]] has no options",
            ),
            ("[[forbid]]\noptions = []\n", "at least one option"),
            (
                "[[forbid]]\noptions = [\"mps\"]\n",
                "names of options: \"gpuos-topology\"",
            ),
            ("[[forbid]]\noptions = [\"gpuos\"]\n", "names of options"),
            (
                "[[forbid]]\noptions = [\"gpuos-mps\", \"--gpuos-mps\"]\n",
                "twice",
            ),
            (
                "[[forbid]]\noptions = [\"gpuos-mps\"]\naccount = \"a,b\"\n",
                "one name as Slurm has it",
            ),
            (
                "[[forbid]]\noptions = [\"gpuos-mps\"]\nwho = \"a\"\n",
                "there is no key `who`",
            ),
            ("[forbid]\noptions = [\"gpuos-mps\"]\n", "[["),
        ] {
            let error = read(text).unwrap_err();
            let placed = error.contains("gpuos.toml:");
            assert!(error.contains(wanted) && placed, "{text}: {error}");
        }
    }
}
