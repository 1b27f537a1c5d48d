//! What a host shows of its GPUs in the resource `gpuos_host` of its own vnode: which are free, linked, out of service. PBS counts GPUs, and knows none from
//! another; gpuosd does, and the planner and the commands read it here.
//!
//! `whole=0-5;free=0-3,5;out=7;links=n1a@0-3+n1b@4-7;numa=0@0-3+1@4-7`: lists of GPUs by their number on the host, `-` for none. What is not known to a
//! reader is passed over, so that hosts of a later release can be read.

use std::fmt;

use gpuos_model::gpuset::{GpuSet, MAX_GPUS};

/// GPUs that have something in common.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// Its name: of a set of GPUs with NVLink to each other, or the number of a NUMA node.
    pub name: String,
    /// The GPUs.
    pub gpus: GpuSet,
}

/// The GPUs of a host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Published {
    /// Those that jobs have as a whole, in service or not.
    pub whole: GpuSet,
    /// Those of them that no job has and that are in service.
    pub free: GpuSet,
    /// Those out of service, shared and divided ones among them.
    pub out: GpuSet,
    /// Sets of GPUs that have NVLink to each other.
    pub links: Vec<Group>,
    /// NUMA nodes with their GPUs.
    pub numa: Vec<Group>,
}

impl Published {
    /// Reads what [`fmt::Display`] writes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Published, String> {
        let mut read = Published::default();
        for part in text
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' has no ="))?;
            match key {
                "whole" => read.whole = set(value)?,
                "free" => read.free = set(value)?,
                "out" => read.out = set(value)?,
                "links" => read.links = groups(value)?,
                "numa" => read.numa = groups(value)?,
                _ => {}
            }
        }
        Ok(read)
    }

    /// The set of links that a GPU is in.
    pub fn linked(&self, gpu: usize) -> Option<&str> {
        named(&self.links, gpu)
    }

    /// The NUMA node of a GPU.
    pub fn numa_of(&self, gpu: usize) -> Option<&str> {
        named(&self.numa, gpu)
    }
}

fn named(groups: &[Group], gpu: usize) -> Option<&str> {
    let mut all = groups.iter();
    let own = all.find(|group| group.gpus.contains(gpu))?;
    Some(&own.name)
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Published {
            whole, free, out, ..
        } = self;
        write!(f, "whole={whole};free={free};out={out}")?;
        for (key, groups) in [("links", &self.links), ("numa", &self.numa)] {
            let texts = groups
                .iter()
                .map(|one| format!("{}@{}", one.name, one.gpus));
            let texts: Vec<String> = texts.collect();
            if !texts.is_empty() {
                write!(f, ";{key}={}", texts.join("+"))?;
            }
        }
        Ok(())
    }
}

fn groups(text: &str) -> Result<Vec<Group>, String> {
    let read = |part: &str| {
        let (name, gpus) = part
            .rsplit_once('@')
            .ok_or_else(|| format!("'{part}' has no @"))?;
        Ok(Group {
            name: name.to_owned(),
            gpus: set(gpus)?,
        })
    };
    text.split('+')
        .filter(|part| !part.is_empty())
        .map(read)
        .collect()
}

fn set(text: &str) -> Result<GpuSet, String> {
    let number = |text: &str| {
        let number = text
            .parse::<usize>()
            .ok()
            .filter(|number| *number < MAX_GPUS);
        number.ok_or_else(|| format!("'{text}' is no number of a GPU"))
    };
    let mut found = GpuSet::EMPTY;
    for part in text.split(',').filter(|part| !matches!(*part, "" | "-")) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        found = (number(first)?..=number(last)?).fold(found, GpuSet::with);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let of = |gpus: &[usize]| gpus.iter().fold(GpuSet::EMPTY, |set, gpu| set.with(*gpu));
        let group = |name: &str, gpus: &[usize]| Group {
            name: name.into(),
            gpus: of(gpus),
        };
        let one = Published {
            whole: of(&[0, 1, 2, 3, 4, 5]),
            free: of(&[0, 1, 3]),
            out: of(&[5]),
            links: vec![group("n1:a", &[0, 1, 2]), group("n1:b", &[3, 4, 5])],
            numa: vec![group("0", &[0, 1, 2, 3, 4, 5])],
        };
        let text = "whole=0-5;free=0-1,3;out=5;links=n1:a@0-2+n1:b@3-5;numa=0@0-5";
        assert_eq!(one.to_string(), text);
        assert_eq!(Published::parse(text).as_ref(), Ok(&one));
        assert_eq!(one.linked(4), Some("n1:b"));
        assert_eq!(one.numa_of(7), None);
        let none = Published::default();
        assert_eq!(Published::parse(&none.to_string()), Ok(none.clone()));
        assert_eq!(Published::parse(";later=x;"), Ok(none));
        for text in ["free", "free=x", "free=64", "links=0-3", "free=3-99"] {
            assert!(Published::parse(text).is_err(), "{text}");
        }
    }
}
