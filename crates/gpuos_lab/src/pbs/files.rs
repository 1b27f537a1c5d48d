//! The files of a lab of PBS: what its hosts have in /etc, and the folders that each has for itself.
//!
//! All hosts of a lab share one copy of this machine's /etc, to which users, addresses and PBS's own files are added; the copy
//! is the lab's, so that an account made in the lab is gone with it. A host has its pbs.conf, its PBS home and its /var/tmp.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::install::Install;
use super::movers;
use crate::error::{Context, LabError};
use crate::gpus;
use crate::mig;
use crate::node_type;
use crate::store::Record;

/// The host of server, scheduler and communication daemon. It runs no jobs.
pub(crate) const HEAD: &str = "head";

/// The users whose jobs a lab takes beside those of root: ordinary ones, each with a group of the same name.
pub const USERS: [&str; 2] = ["user1", "user2"];

/// The account that owns the server's database, as PBS has it.
const DATABASE: &str = "postgres";

/// First number of the lab's own accounts, where it is free.
const FIRST_UID: u32 = 58_000;

/// Names of the lab's hosts: the head, then the nodes.
pub(crate) fn hosts(record: &Record) -> Vec<String> {
    let head = std::iter::once(HEAD.to_string());
    head.chain(record.spec.node_names()).collect()
}

/// Address of a host by its place among [`hosts`], in a network that is the lab's own.
pub(crate) fn address(place: usize) -> Ipv4Addr {
    let [high, low] = (place as u16 + 1).to_be_bytes();
    Ipv4Addr::new(10, 77, high, low)
}

/// What a host has for itself.
pub(crate) fn own(record: &Record, host: &str) -> PathBuf {
    record.path(&format!("hosts/{host}"))
}

/// Home of the PBS of a host; the host has it as `/var/spool/pbs`.
pub(crate) fn home(record: &Record, host: &str) -> PathBuf {
    own(record, host).join("spool")
}

/// Makes them all.
pub(crate) fn make(record: &Record, install: &Install) -> Result<(), LabError> {
    for sub in ["log", "run", "home", "hosts"] {
        folder(&record.path(sub), 0o755)?;
    }
    folder(&record.path("work"), 0o1777)?;
    copy_etc(record)?;
    let users = accounts(record)?;
    for (user, number) in USERS.iter().zip(users) {
        let home = record.path(&format!("home/{user}"));
        folder(&home, 0o755)?;
        chown(&home, Some(number), Some(number))
            .context(|| format!("cannot give {} to {user}", home.display()))?;
    }
    let hosts = hosts(record);
    let lines = hosts.iter().enumerate();
    let lines: Vec<String> = lines
        .map(|(place, host)| format!("{} {host}\n", address(place)))
        .collect();
    let etc = record.path("etc");
    write(
        &etc.join("hosts"),
        &format!("127.0.0.1 localhost\n{}", lines.concat()),
    )?;
    // No question leaves the lab, and none waits for an answer from where no way leads.
    write(
        &etc.join("nsswitch.conf"),
        "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n",
    )?;
    write(&etc.join("resolv.conf"), "")?;
    let prefix = install.prefix.display();
    write(
        &etc.join("profile.d/pbs.sh"),
        &format!("PATH=$PATH:{prefix}/bin:{prefix}/sbin\nexport PATH\n"),
    )?;
    let given = record.spec.gpuos_toml.as_deref().unwrap_or_default();
    let text = given.to_owned() + movers::stanza(&record.spec) + &mig::stanza(&record.spec)?;
    if !text.is_empty() {
        folder(&etc.join("gpuos"), 0o755)?;
        write(&etc.join("gpuos/gpuos.toml"), &text)?;
    }
    // Another is mounted on it in every host.
    write(&etc.join("pbs.conf"), "")?;
    for host in &hosts {
        let own = own(record, host);
        for (sub, mode) in [("spool", 0o755), ("tmp", 0o1777)] {
            folder(&own.join(sub), mode)?;
        }
        write(&own.join("hostname"), &format!("{host}\n"))?;
        write(&own.join("pbs.conf"), &pbs_conf(install, host))?;
    }
    write(&record.path("run/switch.sh"), include_str!("switch.sh"))?;
    write(&record.path("run/host.sh"), include_str!("host.sh"))
}

fn pbs_conf(install: &Install, host: &str) -> String {
    let [head, mom] = match host == HEAD {
        true => [1, 0],
        false => [0, 1],
    };
    format!(
        "PBS_EXEC={}\nPBS_HOME=/var/spool/pbs\nPBS_SERVER={HEAD}\nPBS_START_SERVER={head}\nPBS_START_SCHED={head}\n\
         PBS_START_COMM={head}\nPBS_START_MOM={mom}\nPBS_CORE_LIMIT=0\n",
        install.prefix.display()
    )
}

/// What the home of a node has once PBS has made it: whom its MoM serves, where output goes, what jobs know, and the node's
/// resources, in a file that is returned.
pub(crate) fn finish_node(
    record: &Record,
    install: &Install,
    node: &str,
    node_type: &str,
) -> Result<PathBuf, LabError> {
    let home = home(record, node);
    // All hosts see the same folders, so output is copied and nobody looks for scp.
    write(
        &home.join("mom_priv/config"),
        &format!("$clienthost {HEAD}\n$usecp *:/ /\n$logevent 0xfff\n"),
    )?;
    let (prefix, name) = (install.prefix.display(), &record.spec.name);
    let mut text = format!(
        "PATH={prefix}/bin:{prefix}/sbin:/usr/local/bin:/usr/bin:/bin\nLANG=C\nGPUOS_LAB={name}\nGPUOS_LAB_HOST={node}\n"
    );
    if record.spec.simulated_gpus.is_some() {
        let state = gpus::gpus_dir(record, node).join("state");
        text += &format!("GPUOS_NVML_STATE={}\n", state.display());
    }
    write(&home.join("pbs_environment"), &text)?;
    let kind = node_type::find(&record.spec, node_type)?;
    let has = format!("{node}: resources_available");
    let mut text = format!(
        "$configversion 2\n{has}.ncpus = {}\n{has}.mem = {}mb\n",
        u32::from(kind.sockets) * u32::from(kind.cores_per_socket),
        kind.memory_mib
    );
    if kind.gpus > 0 {
        text += &format!("{has}.ngpus = {}\n", kind.gpus);
    }
    let vnodes = own(record, node).join("vnodes");
    write(&vnodes, &text)?;
    Ok(vnodes)
}

fn copy_etc(record: &Record) -> Result<(), LabError> {
    let etc = record.path("etc");
    folder(&etc, 0o755)?;
    let mut command = Command::new("cp");
    command.args(["-a", "--", "/etc/."]).arg(&etc);
    gpus::output_of(&mut command).map_err(|why| LabError::Machine {
        what: format!("cannot copy /etc into {}: {why}", etc.display()),
        fix: "see that there is room for it, and that root can read /etc".to_string(),
    })?;
    Ok(())
}

/// Adds the lab's users to its /etc, and the account of the server's database where this machine has none. Returns the
/// users' numbers.
fn accounts(record: &Record) -> Result<Vec<u32>, LabError> {
    let etc = record.path("etc");
    let read = |name: &str| {
        let path = etc.join(name);
        fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))
    };
    let (mut passwd, mut group) = (read("passwd")?, read("group")?);
    let taken: Vec<u32> = [&passwd, &group]
        .into_iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.split(':').nth(2)?.parse().ok())
        .collect();
    let mut free = (FIRST_UID..).filter(|number| !taken.contains(number));
    let mut numbers = Vec::new();
    let mut shadow = String::new();
    for name in USERS.into_iter().chain([DATABASE]) {
        let has = |text: &str| {
            text.lines()
                .any(|line| line.starts_with(&format!("{name}:")))
        };
        if name == DATABASE && has(&passwd) {
            continue;
        }
        let number = free.next().unwrap_or(FIRST_UID);
        let without = |text: &str| -> String {
            let own = format!("{name}:");
            let lines = text.lines().filter(|line| !line.starts_with(&own));
            lines.map(|line| format!("{line}\n")).collect()
        };
        let home = record.path(&format!("home/{name}"));
        passwd = without(&passwd);
        passwd += &format!("{name}:x:{number}:{number}::{}:/bin/sh\n", home.display());
        group = without(&group) + &format!("{name}:x:{number}:\n");
        shadow += &format!("{name}:*:19000::::::\n");
        if name == DATABASE {
            folder(&home, 0o755)?;
            chown(&home, Some(number), Some(number))
                .context(|| format!("cannot give {} to {name}", home.display()))?;
        } else {
            numbers.push(number);
        }
    }
    write(&etc.join("passwd"), &passwd)?;
    write(&etc.join("group"), &group)?;
    let path = etc.join("shadow");
    let old = fs::read_to_string(&path).unwrap_or_default();
    let lines = old.lines().filter(|line| {
        let name = line.split(':').next().unwrap_or_default();
        !shadow
            .lines()
            .any(|own| own.split(':').next() == Some(name))
    });
    let old: String = lines.map(|line| format!("{line}\n")).collect();
    write(&path, &(old + &shadow))?;
    Ok(numbers)
}

/// An account of a lab.
pub(crate) struct Account {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) home: PathBuf,
}

/// The account of that name in the lab's /etc.
pub(crate) fn account(record: &Record, name: &str) -> Result<Account, LabError> {
    let text = fs::read_to_string(record.path("etc/passwd")).unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        match fields[..] {
            [own, _, user, group, _, home, ..] if own == name => Some(Account {
                user: user.parse().ok()?,
                group: group.parse().ok()?,
                home: PathBuf::from(home),
            }),
            _ => None,
        }
    });
    found.ok_or_else(|| {
        LabError::Spec(format!(
            "there is no user {name} in lab {}: give {}, or an account of this machine from before the lab was made",
            record.spec.name,
            USERS.join(" or ")
        ))
    })
}

fn folder(path: &Path, mode: u32) -> Result<(), LabError> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .context(|| format!("cannot make {}", path.display()))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), LabError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).context(|| format!("cannot make {}", folder.display()))?;
    }
    // A link that was copied from /etc may lead to a file of the machine.
    if path.is_symlink() {
        fs::remove_file(path).context(|| format!("cannot replace {}", path.display()))?;
    }
    fs::write(path, text).context(|| format!("cannot write {}", path.display()))
}
