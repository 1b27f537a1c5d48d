//! Whether the dynamic loader of this machine could load a shared object: the libraries that it needs, and the versions
//! of their symbols.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Machine;
use crate::elf::{self, Plugin};

/// Where libraries lie, where `ldconfig` does not tell.
const FOLDERS: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// The libraries of a machine.
pub struct Libraries<'a> {
    machine: &'a dyn Machine,
    /// What `ldconfig -p` lists: paths by name.
    listed: BTreeMap<String, PathBuf>,
    /// Versions of the symbols of each library that was looked at.
    versions: RefCell<BTreeMap<PathBuf, BTreeSet<String>>>,
}

impl<'a> Libraries<'a> {
    /// Asks the machine which libraries it has.
    pub fn of(machine: &'a dyn Machine) -> Libraries<'a> {
        let told = ["ldconfig", "/sbin/ldconfig"]
            .iter()
            .find_map(|program| machine.run(program, &["-p"]).ok().filter(|out| out.ok));
        let text = told.map(|output| output.stdout).unwrap_or_default();
        // `libc.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libc.so.6`
        let foreign = match std::env::consts::ARCH {
            "x86_64" => "(libc6)",
            _ => "(libc6,hard-float)",
        };
        let lines = text.lines().filter(|line| !line.contains(foreign));
        let listed = lines.filter_map(|line| {
            let (name, path) = line.split_once(" => ")?;
            let name = name.split_whitespace().next()?;
            Some((name.to_string(), PathBuf::from(path.trim())))
        });
        Libraries {
            machine,
            listed: listed.collect(),
            versions: RefCell::default(),
        }
    }

    /// The path of a library; `None`: the machine does not have it.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let there = |path: &PathBuf| self.machine.stat(path).is_ok();
        let listed = self.listed.get(name).cloned().filter(there);
        listed.or_else(|| {
            let folders = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
            folders.into_iter().find(there)
        })
    }

    fn has(&self, path: &Path, version: &str) -> bool {
        let mut known = self.versions.borrow_mut();
        let own = known.entry(path.to_path_buf()).or_insert_with(|| {
            let bytes = self.machine.read(path).unwrap_or_default();
            elf::read(&bytes)
                .map(|library| library.defines)
                .unwrap_or_default()
        });
        // A library that cannot be read, or has no versions at all, is no proof against the plugin.
        own.is_empty() || own.contains(version)
    }

    /// The newest release of glibc that this machine's has symbols of, for example `2.36`.
    pub fn glibc(&self) -> Option<String> {
        let path = self.find("libc.so.6")?;
        self.has(&path, "");
        let known = self.versions.borrow();
        let newest = known.get(&path)?.iter().filter_map(|name| {
            let text = name.strip_prefix("GLIBC_")?;
            let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
            Some((numbers?, text))
        });
        newest.max().map(|(_, text)| text.to_string())
    }

    /// Why the loader would refuse an object: a clause, `needs libx.so.1, which this machine does not have`.
    pub fn refuses(&self, plugin: &Plugin) -> Option<String> {
        // Slurm's own library is found by the program that loads the plugin.
        let own = |name: &&String| name.starts_with("libslurm") || name.starts_with("ld-linux");
        for name in plugin.needs.iter().filter(|name| !own(name)) {
            if self.find(name).is_none() {
                return Some(format!("needs {name}, which this machine does not have"));
            }
        }
        for (library, versions) in &plugin.versions {
            let Some(path) = self.find(library) else {
                continue;
            };
            let missing: Vec<&str> = versions
                .iter()
                .map(String::as_str)
                .filter(|version| !self.has(&path, version))
                .collect();
            if missing.is_empty() {
                continue;
            }
            let has = match self.glibc().filter(|_| library == "libc.so.6") {
                Some(glibc) => format!(" is glibc {glibc}"),
                None => String::new(),
            };
            return Some(format!(
                "needs {} of {library}, and this machine's {}{has}{}: it was built on a newer system",
                missing.join(", "),
                path.display(),
                if has.is_empty() { " lacks it" } else { "" }
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThisMachine;

    #[test]
    fn an_object_needs_what_the_machine_has() {
        let libraries = Libraries::of(&ThisMachine);
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let own = elf::read(&bytes).unwrap();
        assert_eq!(libraries.refuses(&own), None);
        assert!(libraries.glibc().unwrap().starts_with("2."));
        let mut other = own.clone();
        let libc = other.versions.get_mut("libc.so.6").unwrap();
        libc.insert("GLIBC_9.99".into());
        let told = libraries.refuses(&other).unwrap();
        assert!(told.contains("needs GLIBC_9.99 of libc.so.6"), "{told}");
        assert!(told.contains("is glibc 2."), "{told}");
        let mut other = own;
        other.needs.push("libnowhere.so.9".into());
        let told = libraries.refuses(&other).unwrap();
        assert_eq!(
            told,
            "needs libnowhere.so.9, which this machine does not have"
        );
    }
}
