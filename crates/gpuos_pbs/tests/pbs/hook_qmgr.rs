//! A model of what qmgr does of the lines of an install or a removal, and of what a release before this one made of hosts.

use std::collections::BTreeMap;

use gpuos_pbs::hook::event::Host;
use gpuos_pbs::hook::hosts::{Counts, removal, take};
use gpuos_pbs::hook::install::{Objects, read_hosts};
use serde_json::{Value, json};

/// A PBS, with what the configuration of its hook has noted.
#[derive(Clone, Default)]
pub struct Pbs {
    pub nodes: Objects,
    pub hosts: BTreeMap<String, Host>,
    pub before: BTreeMap<String, Counts>,
}

/// Its name, and what it has.
pub type Node<'a> = (&'a str, &'a [(&'a str, &'a str)]);

pub const NGPUS: &str = "resources_available.ngpus";

impl Pbs {
    pub fn of(nodes: &[Node]) -> Pbs {
        let mut pbs = Pbs::default();
        for (name, has) in nodes {
            pbs.add(name, has);
        }
        pbs
    }

    pub fn add(&mut self, name: &str, has: &[(&str, &str)]) {
        let node = self.nodes.entry(name.into()).or_default();
        let host = name.split('[').next().unwrap_or_default();
        node.insert("Mom".into(), format!("{host}.site"));
        node.insert("state".into(), "free".into());
        for (key, value) in has {
            let plain = ["sharing", "jobs", "comment", "state", "queue"].contains(key);
            let key = if plain {
                (*key).into()
            } else {
                format!("resources_available.{key}")
            };
            node.insert(key, (*value).into());
        }
    }

    pub fn get(&self, node: &str, key: &str) -> Option<&str> {
        let node = self.nodes.get(node)?;
        let value = node
            .get(key)
            .or_else(|| node.get(&format!("resources_available.{key}")));
        value.map(|value| &value[..])
    }

    pub fn set(&mut self, node: &str, key: &str, value: &str) {
        let key = format!("resources_available.{key}");
        let node = self.nodes.get_mut(node).expect("a node");
        match value {
            "" => drop(node.remove(&key)),
            value => drop(node.insert(key, value.into())),
        }
    }

    /// A line of qmgr's, which it would refuse where this panics.
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["set" | "unset" | "delete", "hook", ..] => {}
            ["delete", "resource", name] => {
                let key = format!("resources_available.{name}");
                let has = self.nodes.iter().find(|(_, has)| has.contains_key(&key));
                assert!(has.is_none(), "{line}: {has:?} has it");
            }
            ["delete", "node", name] => {
                let gone = self.nodes.remove(name);
                let gone = gone.unwrap_or_else(|| panic!("{line}: there is none"));
                assert!(!gone.contains_key("jobs"), "{line}: jobs run there");
            }
            ["set", "node", name, rest] => {
                let (key, value) = rest.split_once(" = ").expect("a value");
                let node = self.nodes.get_mut(name);
                let node = node.unwrap_or_else(|| panic!("{line}: there is none"));
                node.insert(key.into(), value.into());
            }
            ["unset", "node", name, key] => {
                let node = self.nodes.get_mut(name);
                let node = node.unwrap_or_else(|| panic!("{line}: there is none"));
                node.remove(key);
            }
            _ => panic!("{line}"),
        }
    }

    /// Lines and notes of an install.
    pub fn install(&mut self, hosts: &Value) -> (Vec<String>, String) {
        let mut hosts = read_hosts(&hosts.to_string()).expect("hosts");
        let taken = take(&mut hosts, &self.hosts, &self.nodes, &self.before);
        for line in &taken.lines {
            self.line(line);
        }
        // The configuration is written and read again.
        self.hosts = read_hosts(&serde_json::to_string(&hosts).expect("JSON")).expect("hosts");
        self.before = taken.before;
        (taken.lines, taken.notes.join("\n"))
    }

    /// What keeps a removal, and its notes. Where nothing does the configuration is gone with the hook.
    pub fn remove(&mut self) -> (String, String) {
        let object = |name: &str| (name.to_owned(), BTreeMap::new());
        let names = [
            "gpuos_leaf",
            "gpuos_host",
            "gpuos_ngpus",
            "gpuos_nvlink",
            "gpuos_uuid",
            "gpuos_share_gpu",
            "gpuos_share_parts",
        ];
        let (resources, hooks) = (names.map(object).into(), [object("gpuos")].into());
        let known = (&self.hosts, &self.before);
        let removal = removal(&resources, &hooks, &self.nodes, known);
        for line in &removal.lines {
            self.line(line);
        }
        if removal.kept.is_empty() {
            assert!(removal.lines.iter().any(|line| line == "delete hook gpuos"));
            (self.hosts, self.before) = Default::default();
        }
        (removal.kept.join("\n"), removal.notes.join("\n"))
    }

    /// The vnodes of which mom's hook counts the GPUs: on hosts whose GPUs gpuos gives, but those that a release before this one has made.
    pub fn counting(&self) -> Vec<String> {
        let counts = |node: &&String| {
            let host = node.split('[').next().unwrap_or_default();
            let known = self.hosts.get(host);
            let gives = known.is_some_and(|host| !host.advise && !host.gpus.is_empty());
            let was_divided = self
                .before
                .get(host)
                .is_some_and(|before| before.contains_key("resources_available.ncpus"));
            gives && !was_divided && self.get(node, NGPUS).is_some()
        };
        self.nodes.keys().filter(counts).cloned().collect()
    }

    /// What mom's hook writes where so many GPUs of a vnode are to be had.
    pub fn counted(&mut self, node: &str, whole: u64) {
        let now: u64 = self
            .get(node, NGPUS)
            .map_or(0, |now| now.parse().expect("a number"));
        let noted = self
            .get(node, "gpuos_ngpus")
            .and_then(|noted| noted.split_once('>'));
        let site = noted
            .filter(|(_, made)| *made == now.to_string())
            .map_or(now, |(site, _)| site.parse().expect("a number"));
        let made = site.min(whole);
        self.set(node, "ngpus", &made.to_string());
        let noted = if made == site {
            String::new()
        } else {
            format!("{site}>{made}")
        };
        self.set(node, "gpuos_ngpus", &noted);
        self.set(node, "gpuos_host", "whole=0");
    }
}

/// What a release before this one has made of a host with so many CPUs and KiB of memory: a vnode of each GPU, with one CPU and one KiB, of which `shared` is
/// shared. Hosts are described without uuid and NUMA node where they are `bare`.
pub fn former(pbs: &mut Pbs, name: &str, hosts: &Value, bare: bool) {
    let gpus = hosts[name]["gpus"].as_array().expect("GPUs").clone();
    let own = pbs.nodes[name].clone();
    let count = |key: &str| {
        let key = format!("resources_available.{key}");
        (key.clone(), own.get(&key).cloned())
    };
    pbs.before
        .insert(name.into(), ["ncpus", "mem", "ngpus"].map(count).into());
    let number = |key: &str| -> u64 {
        let text = own[&format!("resources_available.{key}")].trim_end_matches("kb");
        text.parse().expect("a number")
    };
    let rest = |all: u64| all - gpus.len() as u64;
    let (cpus, memory) = (
        rest(number("ncpus")).to_string(),
        format!("{}kb", rest(number("mem"))),
    );
    let leaf = hosts[name]["leaf"].as_str().unwrap_or_default();
    for (key, value) in [
        ("ncpus", &cpus[..]),
        ("mem", &memory),
        ("ngpus", "0"),
        ("gpuos_leaf", leaf),
    ] {
        pbs.set(name, key, value);
    }
    for (index, gpu) in gpus.iter().enumerate() {
        let is_shared = gpu["shares"].as_u64().is_some();
        let parts = format!("{name}-{index}");
        let vnode = format!("{name}[{index}]");
        let mut has = vec![("ncpus", "1"), ("mem", "1kb"), ("gpuos_leaf", leaf)];
        has.extend(match is_shared {
            true => [
                ("ngpus", "0"),
                ("sharing", "default_shared"),
                ("gpuos_share_gpu", &parts),
                ("gpuos_share_parts", "4"),
            ]
            .to_vec(),
            false => [("ngpus", "1"), ("sharing", "force_excl")].to_vec(),
        });
        let uuid = gpu["uuid"].as_str().unwrap_or_default();
        if !bare {
            has.push(("gpuos_uuid", uuid));
        }
        has.retain(|(_, value)| !value.is_empty());
        pbs.add(&vnode, &has);
    }
    let mut hosts = read_hosts(&json!({ name: hosts[name] }).to_string()).expect("hosts");
    pbs.hosts.append(&mut hosts);
}
