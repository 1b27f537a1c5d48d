//! `exec_vnode`: which vnodes a job was given, chunk by chunk.

use std::collections::BTreeSet;

use gpuos_model::hostlist::shorten;

use super::text::{is_space, pair, split};
use crate::units;

/// The most GPUs of a host that have a vnode of their own.
pub const MOST_GPUS: usize = 256;

/// What a job was given of one vnode for one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    /// Name of the vnode.
    pub vnode: String,
    /// Resources and their values.
    pub resources: Vec<(String, String)>,
}

impl Given {
    /// How much of a resource that is counted in whole numbers; none where nothing is said.
    pub fn count(&self, resource: &str) -> u64 {
        let of = self.resources.iter().find(|(name, _)| name == resource);
        of.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
    }

    /// Its memory, in KiB; 0 where nothing is said.
    pub fn memory_kib(&self) -> u64 {
        let of = self.resources.iter().find(|(name, _)| name == "mem");
        of.and_then(|(_, value)| units::kib(value)).unwrap_or(0)
    }
}

/// Reads `(n1:ngpus=2:ncpus=4)+(n2[0]:ngpus=1+n2[1]:ngpus=1)`: a list for each chunk.
///
/// # Errors
/// What is wrong with it.
pub fn parse_exec_vnode(text: &str) -> Result<Vec<Vec<Given>>, String> {
    let mut chunks: Vec<Vec<Given>> = Vec::new();
    let mut open = false;
    for part in split(text, '+')? {
        let part = part.trim_matches(is_space);
        let inner = part.strip_prefix('(');
        let closes = part.ends_with(')');
        let known = inner.unwrap_or(part);
        let known = known.strip_suffix(')').unwrap_or(known);
        // A bracket in a bracket, or one that closes nothing.
        if (inner.is_some() && open) || (closes && inner.is_none() && !open) {
            return Err(format!("its brackets do not match at '{}'", shorten(part)));
        }
        let given = given(known)?;
        match chunks.last_mut().filter(|_| open) {
            Some(chunk) => chunk.push(given),
            None => chunks.push(vec![given]),
        }
        open = (open || inner.is_some()) && !closes;
    }
    match open {
        true => Err("its last bracket is not closed".into()),
        false => Ok(chunks),
    }
}

fn given(text: &str) -> Result<Given, String> {
    let parts = split(text, ':')?;
    let vnode = parts[0].trim_matches(is_space);
    if !is_vnode(vnode) {
        return Err(format!("'{}' is no name of a vnode", shorten(vnode)));
    }
    let resources: Result<_, _> = parts[1..].iter().map(|part| pair(part)).collect();
    Ok(Given {
        vnode: vnode.to_owned(),
        resources: resources?,
    })
}

/// Whether a text can be the name of a vnode.
pub fn is_vnode(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"._-[]@^/#,".contains(&b);
    !name.is_empty() && name.len() <= 255 && name.bytes().all(inner)
}

/// Host and number in brackets of a vnode such as `n1[2]`: with a release before this one that is GPU 2 of the host, on hosts that a site divides itself as
/// often a NUMA node.
pub fn gpu_of(vnode: &str) -> Option<(&str, usize)> {
    let (host, rest) = vnode.split_once('[')?;
    let digits = rest.strip_suffix(']')?;
    let plain =
        digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    let index = digits
        .parse()
        .ok()
        .filter(|index| plain && *index < MOST_GPUS)?;
    (!host.is_empty()).then_some((host, index))
}

/// The name of a host by which names of it are compared: PBS has the short one in names of vnodes, and may have the long one for the host.
pub fn short(name: &str) -> String {
    let first = name.split('.').next().unwrap_or_default();
    first.to_ascii_lowercase()
}

/// The host of a vnode, by its name.
pub(super) fn host_of(vnode: &str) -> &str {
    vnode.split('[').next().unwrap_or_default()
}

/// The hosts of what a job was given, each once, in order: that of its script is the first.
pub fn hosts<'a>(given: impl IntoIterator<Item = &'a Given>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let hosts = given.into_iter().map(|one| short(host_of(&one.vnode)));
    hosts.filter(|host| seen.insert(host.clone())).collect()
}
