//! `[[memory-share]]`: what of a node's host memory the jobs of an account, a partition or a QOS are kept, and what they get at most.
use gpuos_model::fnv::fnv;
use gpuos_model::reading::{Check, ConfigError, Place, quoted};
use toml::Spanned;

use super::raw::RawMemoryShare;
use crate::options::size;

/// The most tables.
const MOST: usize = 256;

/// A `[[memory-share]]`. Whose it is the workload manager's record of a job says, never the job's own text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryShare {
    /// Jobs of this account; `None`: of any.
    pub account: Option<String>,
    /// Jobs in this partition.
    pub partition: Option<String>,
    /// Jobs with this QOS.
    pub qos: Option<String>,
    /// MiB of host memory of each node that are kept for all of them together, while one of them runs there.
    pub guaranteed_mib: u64,
    /// MiB that all of them together get of a node; `None`: no bound.
    pub at_most_mib: Option<u64>,
    /// Who has a lower one gives way first when memory is short.
    pub rank: u32,
}

impl MemoryShare {
    /// Whether it is about a job.
    pub fn is_of(&self, account: &str, partitions: &[String], qos: &str) -> bool {
        let same = |wanted: &Option<String>, has: &str| {
            wanted
                .as_ref()
                .is_none_or(|wanted| wanted.eq_ignore_ascii_case(has))
        };
        let in_partition = |wanted: &String| partitions.contains(wanted);
        same(&self.account, account)
            && same(&self.qos, qos)
            && self.partition.as_ref().is_none_or(in_partition)
    }

    /// A number that depends on whose it is alone: the same after the file was changed elsewhere.
    pub fn number(&self) -> u64 {
        let words = [&self.account, &self.partition, &self.qos];
        // No name has these two bytes in it.
        let text: Vec<u8> = words
            .into_iter()
            .flat_map(|word| {
                let mut bytes = word
                    .as_deref()
                    .unwrap_or("")
                    .to_ascii_lowercase()
                    .into_bytes();
                bytes.extend([u8::from(word.is_some()), 0]);
                bytes
            })
            .collect();
        fnv(text)
    }

    /// Whose it is, for messages.
    pub fn whose(&self) -> String {
        let part =
            |what: &str, of: &Option<String>| of.as_ref().map(|name| format!("{what} {name}"));
        let parts = [
            part("account", &self.account),
            part("partition", &self.partition),
            part("QOS", &self.qos),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        parts.join(", ")
    }
}

/// What is read, and partitions that have to exist, with their places.
pub(super) type Read = (Vec<MemoryShare>, Vec<(String, Place)>);

pub(super) fn read(check: Check, tables: &[Spanned<RawMemoryShare>]) -> Result<Read, ConfigError> {
    if let Some(table) = tables.get(MOST) {
        return Err(check.error(table, format!("more than {MOST} [[memory-share]]")));
    }
    let mut shares: Vec<MemoryShare> = Vec::new();
    let mut partitions = Vec::new();
    for table in tables {
        let raw = table.get_ref();
        let name = |key, value: &Option<Spanned<String>>| {
            let name = value.as_ref().map(|value| check.name(key, value));
            name.transpose()
        };
        let mib = |key, value: &Option<Spanned<String>>| {
            let Some(value) = value else { return Ok(None) };
            let text = value.get_ref();
            let form = "a size in binary units, such as \"64G\" or \"64GiB\", up to \"4095T\"";
            let mib = size::parse(&text.to_ascii_lowercase());
            let mib = mib.ok_or_else(|| check.refuse(key, value, quoted(text), form))?;
            Ok(Some(u64::from(mib)))
        };
        let share = MemoryShare {
            account: name("account", &raw.account)?,
            partition: name("partition", &raw.partition)?,
            qos: name("qos", &raw.qos)?,
            guaranteed_mib: mib("guaranteed", &raw.guaranteed)?.unwrap_or(0),
            at_most_mib: mib("at-most", &raw.at_most)?,
            rank: check.int("rank", &raw.rank, 0..=1000, 0)? as u32,
        };
        if let (Some(value), Some(name)) = (&raw.partition, &share.partition) {
            partitions.push((name.clone(), check.place(value)));
        }
        if share.whose().is_empty() {
            let message =
                "[[memory-share]] says nothing of whose it is; add account, partition or qos";
            return Err(check.error(table, message));
        }
        if let Some(most) = share.at_most_mib
            && most < share.guaranteed_mib
        {
            let message = "at-most is less than guaranteed, which could never be had; raise the one or lower the other";
            return Err(check.error(table, message));
        }
        let number = share.number();
        if let Some(at) = shares.iter().position(|other| other.number() == number) {
            let at = at + 1;
            let message = format!("[[memory-share]] {at} is of the same jobs; remove one of them");
            return Err(check.error(table, message));
        }
        shares.push(share);
    }
    Ok((shares, partitions))
}

#[cfg(test)]
mod tests {
    use crate::gpuos_toml::{Config, MemoryConfig};

    fn read(text: &str) -> Result<MemoryConfig, String> {
        let config = Config::parse(text, "gpuos.toml").map(|config| config.memory);
        config.map_err(|e| e.to_string())
    }

    #[test]
    fn the_first_share_that_is_of_a_job_counts() {
        let text = "[[memory-share]]\naccount = \"physics\"\nqos = \"urgent\"\nguaranteed = \"64G\"\nrank = 9\n\
                    [[memory-share]]\naccount = \"physics\"\nat-most = \"1T\"\n\
                    [[memory-share]]\npartition = \"gpu\"\n";
        let config = read(text).unwrap();
        let gpu = ["gpu".to_owned()];
        let of = |account, qos, partitions: &[String]| {
            let share = config.share_of(account, partitions, qos);
            share.map(|share| (share.guaranteed_mib, share.at_most_mib, share.rank))
        };
        assert_eq!(of("Physics", "urgent", &gpu), Some((64 << 10, None, 9)));
        assert_eq!(of("physics", "normal", &[]), Some((0, Some(1 << 20), 0)));
        assert_eq!(of("bio", "urgent", &gpu), Some((0, None, 0)));
        assert_eq!(of("bio", "urgent", &[]), None);
        let [a, b, c] = &config.shares[..] else {
            panic!("{:?}", config.shares);
        };
        assert!(a.number() != b.number() && b.number() != c.number());
        assert_eq!(a.whose(), "account physics, QOS urgent");
        // Where it stands says nothing.
        let moved = read("[[memory-share]]\naccount = \"PHYSICS\"\n").unwrap();
        assert_eq!(moved.shares[0].number(), b.number());
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            ("guaranteed = \"4G\"", "account, partition or qos"),
            (
                "account = \"a\"\nguaranteed = \"4G\"\nat-most = \"2G\"",
                "could never be had",
            ),
            (
                "account = \"a\"\nguaranteed = \"4\"",
                "a size in binary units",
            ),
            (
                "account = \"a\"\nat-most = \"9999999T\"",
                "a size in binary units",
            ),
            ("account = \"a\"\nrank = 1001", "from 0 to 1000"),
            ("account = \"a\"\nuser = \"ann\"", "there is no key"),
            ("account = \"a b\"", "account"),
            (
                "account = \"a\"\n[[memory-share]]\naccount = \"A\"",
                "is of the same jobs",
            ),
        ] {
            let error = read(&format!("[[memory-share]]\n{text}\n")).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
            assert!(error.contains("gpuos.toml:"), "{error}");
        }
    }
}
