//! Where the slurmds of nodes listen, by slurm.conf.
use std::collections::HashMap;

use gpuos_model::hostlist::expand;

use super::{Read, lines_of_slurm_conf};

/// slurmd's port where slurm.conf names none (`SLURMD_PORT` in Slurm's configure.ac).
const SLURMD_PORT: u16 = 6818;

/// Addresses of nodes, and how Slurm proves who somebody is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// By node: host name or address, and slurmd's port.
    nodes: HashMap<String, (String, u16)>,
    port: u16,
    /// `AuthInfo=` as it is written; empty when there is none.
    pub auth_info: String,
}

impl Addresses {
    /// Reads slurm.conf with the files that it includes.
    ///
    /// # Errors
    /// A file cannot be read, or slurm.conf is missing; the sentence names it.
    pub fn read(read: Read<'_>) -> Result<Addresses, String> {
        let lines = lines_of_slurm_conf(read)?;
        let mut found = Addresses {
            nodes: HashMap::new(),
            port: SLURMD_PORT,
            auth_info: String::new(),
        };
        let mut default: HashMap<String, String> = HashMap::new();
        let mut nodes = Vec::new();
        for line in lines {
            let keys: HashMap<String, String> = line.pairs.into_iter().collect();
            if let Some(port) = keys.get("slurmdport") {
                // A range is for several slurmds of one node, of which the first one counts.
                let first = port.split('-').next().unwrap_or_default();
                found.port = first.parse().unwrap_or(SLURMD_PORT);
            }
            if let Some(info) = keys.get("authinfo") {
                found.auth_info.clone_from(info);
            }
            match keys.get("nodename") {
                Some(name) if name.eq_ignore_ascii_case("DEFAULT") => default.extend(keys),
                Some(_) => nodes.push(default.clone().into_iter().chain(keys).collect()),
                None => {}
            }
        }
        for line in &nodes {
            found.add(line);
        }
        Ok(found)
    }

    fn add(&mut self, line: &HashMap<String, String>) {
        let list = |key: &str| line.get(key).and_then(|list| expand(list).ok());
        let Some(names) = list("nodename") else {
            return;
        };
        // As many as nodes, or one for all of them: several slurmds of a host, each with its port.
        let of = |list: Option<Vec<String>>| match list {
            Some(list) if list.len() == names.len() => Some(list),
            Some(list) if list.len() == 1 => Some(vec![list[0].clone(); names.len()]),
            _ => None,
        };
        let hosts = of(list("nodeaddr"))
            .or_else(|| of(list("nodehostname")))
            .unwrap_or_else(|| names.clone());
        let ports: Option<Vec<u16>> = list("port")
            .map(|ports| ports.iter().filter_map(|p| p.parse().ok()).collect())
            .filter(|ports: &Vec<u16>| !ports.is_empty());
        for (at, (name, host)) in names.into_iter().zip(hosts).enumerate() {
            let port = ports.as_ref().map(|p| p[at.min(p.len() - 1)]);
            self.nodes.insert(name, (host, port.unwrap_or(self.port)));
        }
    }

    /// Host and port of a node's slurmd; of a node that no line names (a dynamic one), its name.
    pub fn of(&self, node: &str) -> (String, u16) {
        let known = self.nodes.get(node).cloned();
        known.unwrap_or_else(|| (node.into(), self.port))
    }
}

#[cfg(test)]
mod tests {
    use super::Addresses;

    #[test]
    fn ports_and_addresses_of_nodes() {
        let conf = "SlurmdPort=7000-7003\nAuthInfo=socket=/x,ttl=30\n\
                    NodeName=DEFAULT Port=9\n\
                    NodeName=n[1-2] NodeAddr=10.0.0.[1-2] Port=[17-18]\n\
                    NodeName=gpu[1-2] NodeHostName=h[1-2]\nNodeName=odd NodeAddr=a,b\n\
                    NodeName=m[1-3] NodeAddr=10.0.0.9 Port=[20-22]\nNodeName=k[1-2] NodeHostname=one Port=[30-31]\n";
        let read = |name: &str| Ok((name == "slurm.conf").then(|| conf.to_string()));
        let found = Addresses::read(&read).unwrap();
        assert_eq!(found.of("n2"), ("10.0.0.2".into(), 18));
        assert_eq!(found.of("gpu1"), ("h1".into(), 9));
        assert_eq!(found.of("odd"), ("odd".into(), 9));
        assert_eq!(found.of("m3"), ("10.0.0.9".into(), 22));
        assert_eq!(found.of("k2"), ("one".into(), 31));
        assert_eq!(found.of("cloud"), ("cloud".into(), 7000));
        assert_eq!(found.auth_info, "socket=/x,ttl=30");
        let none = |_: &str| Ok(None);
        assert_eq!(
            Addresses::read(&none).unwrap_err(),
            "slurm.conf: no such file"
        );
    }
}
