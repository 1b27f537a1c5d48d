//! Hosts of a site: what they count, what is said of them, and the vnodes that a site makes of some.

use std::fmt::Write as _;

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// CPUs, which are what PBS counts and need not be there.
    pub ncpus: u64,
    /// GPUs that the site counts.
    pub ngpus: u64,
    /// Lines of `qmgr -c "set node"` for each of its vnodes.
    pub labels: Vec<String>,
    /// The queue that it is bound to.
    pub queue: Option<&'static str>,
    /// Whether the site has made two vnodes of it.
    pub split: bool,
}

impl Host {
    /// Its vnodes that have something, each with its part.
    pub fn vnodes(&self) -> Vec<String> {
        match self.split {
            true => vec![format!("{}[0]", self.name), format!("{}[1]", self.name)],
            false => vec![self.name.clone()],
        }
    }

    /// What its mom says of it, in the form of `pbs_mom -s insert`: the CPUs and the memory that it would find on such a host, and the vnodes that
    /// the site has made of it.
    pub fn vnode_definition(&self) -> String {
        let name = &self.name;
        let mut text = String::from("$configversion 2\n");
        let mut add = |vnode: &str, ncpus: u64, mem: u64| {
            let has = format!("{vnode}: resources_available");
            let _ = writeln!(text, "{has}.ncpus = {ncpus}\n{has}.mem = {mem}gb");
        };
        if self.split {
            add(name, 0, 0);
        }
        let vnodes = self.vnodes();
        let parts = vnodes.len() as u64;
        for vnode in &vnodes {
            add(vnode, self.ncpus / parts, 64 / parts);
        }
        text
    }

    /// Lines for qmgr: what is counted.
    pub fn counts(&self) -> String {
        let mut text = String::new();
        for vnode in self.vnodes() {
            let parts = if self.split { 2 } else { 1 };
            let mut set = |what: &str| {
                let _ = writeln!(text, "set node {vnode} {what}");
            };
            if self.ngpus > 0 {
                set(&format!(
                    "resources_available.ngpus = {}",
                    self.ngpus / parts
                ));
            }
        }
        text
    }

    /// Lines for qmgr: what else the site says of it.
    pub fn labels(&self) -> String {
        let queue = self.queue.map(|queue| format!("queue = {queue}"));
        let all: Vec<String> = self.labels.iter().cloned().chain(queue).collect();
        let vnodes = self.vnodes();
        let lines = vnodes.iter().flat_map(|vnode| {
            let line = move |what: &String| format!("set node {vnode} {what}\n");
            all.iter().map(line)
        });
        lines.collect()
    }
}
