//! A job by its id.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// The longest id, in bytes.
pub const MAX_JOB_ID: usize = 255;

/// The id that a workload manager has for a job: a number, as Slurm has them, or a word, such as `12[3].server`. Nobody but the adapter
/// of a workload manager looks into it.
///
/// It can stand in a path as it is: see its [`FromStr`]. Numbers come before words, by their value. In JSON a number is a number, as
/// releases before this type wrote and read it; text is read, too.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Form);

/// A word that is a number is never kept as a word: equal ids are equal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Number(u32),
    Word(Arc<str>),
}

/// Text that is no id of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoJobId;

impl JobId {
    /// The number that it is: for the adapter of a workload manager that numbers its jobs. `None`: it is a word.
    pub fn number(&self) -> Option<u32> {
        match &self.0 {
            Form::Number(number) => Some(*number),
            Form::Word(_) => None,
        }
    }
}

impl From<u32> for JobId {
    fn from(number: u32) -> JobId {
        JobId(Form::Number(number))
    }
}

/// Job 0, which is none: workload managers count from 1 on.
impl Default for JobId {
    fn default() -> JobId {
        JobId::from(0)
    }
}

/// Letters, digits, `.`, `_`, `-`, `[` and `]`, at most [`MAX_JOB_ID`] bytes; it begins with no `-` and no `.`, and has no `..`: paths and
/// command lines are made with it.
impl FromStr for JobId {
    type Err = NoJobId;

    fn from_str(text: &str) -> Result<JobId, NoJobId> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-[]".contains(&byte);
        let well = (1..=MAX_JOB_ID).contains(&text.len())
            && text.bytes().all(plain)
            && !text.starts_with(['-', '.'])
            && !text.contains("..");
        if !well {
            return Err(NoJobId);
        }
        // What is read as a number is written as the same text.
        let number = text.parse::<u32>().ok();
        let number = number.filter(|number| number.to_string() == text);
        Ok(JobId(match number {
            Some(number) => Form::Number(number),
            None => Form::Word(text.into()),
        }))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Number(number) => number.fmt(f),
            Form::Word(word) => word.fmt(f),
        }
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for NoJobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no id of a job: letters, digits and ._-[] are, and it begins with none of .-")
    }
}

impl std::error::Error for NoJobId {}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Form::Number(number) => to.serialize_u32(*number),
            Form::Word(word) => to.serialize_str(word),
        }
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<JobId, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = JobId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the id of a job")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<JobId, E> {
                let number = u32::try_from(number).map_err(E::custom)?;
                Ok(JobId::from(number))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<JobId, E> {
                text.parse().map_err(E::custom)
            }
        }

        from.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_what_can_stand_in_a_path() {
        for good in [
            "7",
            "1234.server",
            "12[3].server",
            "12[].a-b_c",
            "Job7",
            "007",
        ] {
            let id: JobId = good.parse().unwrap();
            assert_eq!(id.to_string(), good);
        }
        let long = "a".repeat(MAX_JOB_ID);
        assert!(long.parse::<JobId>().is_ok());
        let longer = format!("{long}a");
        let bad = [
            "", ".", "..", ".a", "-7", "a/b", "/", "../x", "1..2", "a b", "7\n", "7\0", "ä", "%j",
            "7;", &longer,
        ];
        for text in bad {
            assert_eq!(text.parse::<JobId>(), Err(NoJobId), "{text:?}");
        }
    }

    #[test]
    fn numbers_are_numbers_and_come_in_their_order() {
        let id = |text: &str| text.parse::<JobId>().unwrap();
        assert_eq!(id("7"), JobId::from(7));
        assert_eq!([id("7").number(), id("7.a").number()], [Some(7), None]);
        // Another text is another job.
        assert_ne!(id("07"), id("7"));
        assert_eq!(id("4294967296").number(), None);
        assert!(id("9") < id("10") && id("10") < id("1.server"));
    }

    /// Messages and journals stay as releases before wrote and read them.
    #[test]
    fn json_has_numbers_as_numbers_and_reads_text() {
        let id = |text: &str| text.parse::<JobId>().unwrap();
        let read = |json: &str| serde_json::from_str::<JobId>(json).ok();
        for (json, text) in [("7", "7"), ("4294967295", "4294967295"), ("\"7.a\"", "7.a")] {
            assert_eq!(serde_json::to_string(&id(text)).unwrap(), json);
            assert_eq!(read(json), Some(id(text)));
        }
        assert_eq!(read("\"7\""), Some(JobId::from(7)));
        for bad in ["-1", "4294967296", "1.5", "null", "\"a/b\"", "\"\"", "[7]"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        // As keys of a journal.
        let map = BTreeMap::from([(id("7"), 1), (id("10"), 2), (id("8.a"), 3)]);
        let json = serde_json::to_string(&map).unwrap();
        assert_eq!(json, r#"{"7":1,"10":2,"8.a":3}"#);
        assert_eq!(
            serde_json::from_str::<BTreeMap<JobId, u32>>(&json).unwrap(),
            map
        );
    }

    proptest! {
        #[test]
        fn an_id_is_one_part_of_a_path(text in "\\PC{0,12}|[./a0-]{0,6}") {
            if let Ok(id) = text.parse::<JobId>() {
                prop_assert_eq!(id.to_string(), text.clone());
                let path = std::path::Path::new("/run").join(&text);
                prop_assert_eq!(path.parent(), Some(std::path::Path::new("/run")));
                prop_assert_eq!(path.file_name().and_then(|name| name.to_str()), Some(text.as_str()));
            }
        }
    }
}
