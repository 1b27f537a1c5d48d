//! A network that is cut between real gpuosds: four nodes, each in a network namespace of its own, on two switches with
//! a wire between them. munged is real; slurmctld is a script that all of them reach, slurmds are sockets.

use std::fs::{self, File, Permissions};
use std::io::Read as _;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use gpuos_core::peers::HOLD_MS;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::program::{JOBS, program};
use crate::site::{Daemon, Site, put};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// slurmctld, asked from the node whose name stands for OWN. A node that is set DOWN loses its job.
const SLURM: &str = r#"#!/bin/sh
cd CTL
[ ! -e away.OWN ] || { echo "slurm_load_node error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }
case "$(basename "$0") $*" in
"scontrol show config") exit 0 ;;
"scontrol show node "*)
    printf 'NodeName=%s Arch=x86_64\n   Gres=gpu:h100:8(S:0-1)\n   State=%s ThreadsPerCore=1\n' "$3" "$(cat state."$3")"
    printf '   Extra=\n   Reason=%s [root@2026-11-20T21:40:00]\n' "$(cat reason."$3")" ;;
"scontrol update NodeName="*" State=DOWN Reason="*)
    echo "OWN $*" >>log
    printf '%s' "${4#Reason=}" >reason."${2#NodeName=}"
    echo DOWN >state."${2#NodeName=}"
    cp pending new.$$
    mv new.$$ job ;;
"scontrol update NodeName="*" State=RESUME")
    echo "OWN $*" >>log
    : >reason."${2#NodeName=}"
    echo IDLE >state."${2#NodeName=}" ;;
"squeue -a -w "*) { grep -q JobState=RUNNING job && cat job; } | awk -v rows="$SQUEUE_FORMAT2" -f CTL/jobs.awk ;;
"squeue "*) awk -v rows="$SQUEUE_FORMAT2" -f CTL/jobs.awk job ;;
"scontrol -d show job 8") awk -f CTL/jobs.awk job ;;
*) echo "OWN $(basename "$0") $*" >>log ;;
esac
exit 0
"#;

fn job(state: &str, nodes: &str) -> String {
    format!(
        "JobId=8 JobName=train\n   UserId=ann(1000) GroupId=ann(1000)\n   JobState={state} Reason=None\n   Requeue=1 \
         Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n   NodeList={nodes}\n   NumNodes=4 NumCPUs=4\n     \
         Nodes=n[1-4] CPU_IDs=0 Mem=0 GRES=gpu:h100:1(IDX:0)\n"
    )
}

fn ip(words: &str) -> Result<(), String> {
    let done = Command::new("ip").args(words.split(' ')).output();
    let done = done.map_err(|e| format!("ip: {e}"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip {words}: {}",
            String::from_utf8_lossy(&done.stderr)
        )),
    }
}

/// Two switches and the nodes on them, removed at the end.
struct Network {
    prefix: String,
}

impl Network {
    fn make() -> Result<Network, String> {
        let network = Network {
            prefix: format!("gpuosd-{}", std::process::id()),
        };
        let hub = network.space("hub");
        ip(&format!("netns add {hub}"))?;
        let inside = |words: &str| ip(&format!("-n {hub} {words}"));
        for switch in ["a", "b"] {
            inside(&format!("link add switch-{switch} type bridge"))?;
            inside(&format!("link set switch-{switch} up"))?;
        }
        inside("link add wire-a type veth peer name wire-b")?;
        for switch in ["a", "b"] {
            inside(&format!("link set wire-{switch} master switch-{switch}"))?;
            inside(&format!("link set wire-{switch} up"))?;
        }
        for (at, node) in NODES.iter().enumerate() {
            let space = network.space(node);
            ip(&format!("netns add {space}"))?;
            ip(&format!("-n {space} link set lo up"))?;
            inside(&format!(
                "link add {node} type veth peer name eth0 netns {space}"
            ))?;
            inside(&format!("link set {node} up"))?;
            ip(&format!(
                "-n {space} addr add 10.77.0.{}/24 dev eth0",
                at + 1
            ))?;
            ip(&format!("-n {space} link set eth0 up"))?;
        }
        Ok(network)
    }

    fn space(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn hub(&self, words: &str) {
        ip(&format!("-n {} {words}", self.space("hub"))).unwrap();
    }

    /// Which nodes are on the first switch; the others are on the second.
    fn first_has(&self, nodes: &[&str]) {
        for node in NODES {
            let switch = if nodes.contains(&node) { "a" } else { "b" };
            self.hub(&format!("link set {node} master switch-{switch}"));
        }
    }

    fn cut(&self, cut: bool) {
        self.hub(&format!(
            "link set wire-a {}",
            if cut { "down" } else { "up" }
        ));
    }

    /// A slurmd in the eyes of those who connect to it.
    fn slurmd(&self, node: &str) {
        let space = File::open(Path::new("/run/netns").join(self.space(node))).unwrap();
        let run = move || {
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            drop(space);
            let listener = TcpListener::bind("0.0.0.0:16818").unwrap();
            for stream in listener.incoming().flatten() {
                let _ = { stream }.read(&mut [0; 8]);
            }
        };
        thread::spawn(run);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in NODES.iter().chain(&["hub"]) {
            let _ = ip(&format!("netns del {}", self.space(name)));
        }
    }
}

struct Munged(Child);

impl Munged {
    fn start(folder: &Path) -> Result<Munged, String> {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.join("key"), [7; 64]).unwrap();
        fs::set_permissions(folder.join("key"), Permissions::from_mode(0o600)).unwrap();
        let mut command = Command::new("munged");
        command.args(["--foreground", "--force", "--num-threads=2"]);
        let files = [
            ("socket", "socket"),
            ("key-file", "key"),
            ("seed-file", "seed"),
            ("pid-file", "pid"),
            ("log-file", "log"),
        ];
        for (option, file) in files {
            command.arg(format!("--{option}={}", folder.join(file).display()));
        }
        let quiet = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        quiet
            .spawn()
            .map(Munged)
            .map_err(|e| format!("munged: {e}"))
    }
}

impl Drop for Munged {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The stand-in for slurmctld.
struct Slurmctld(PathBuf);

impl Slurmctld {
    fn write(&self, name: &str, text: &str) {
        put(&self.0.join(name), text);
    }

    /// It starts the job again.
    fn run(&self) {
        self.write("job", &job("RUNNING", "n[1-4]"));
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// Requests to set nodes DOWN, as (who asked, about whom).
    fn downs(&self) -> Vec<(String, String)> {
        let log = self.read("log");
        let downs = log.lines().filter(|line| line.contains("State=DOWN"));
        let names = |line: &str| {
            let mut words = line.split(' ');
            let own = words.next()?.to_owned();
            Some((
                own,
                words
                    .find_map(|word| word.strip_prefix("NodeName="))?
                    .to_owned(),
            ))
        };
        downs.filter_map(names).collect()
    }
}

fn all_hear(site: &Site, daemons: &[Daemon<'_>], slurmctld: &Slurmctld) {
    for daemon in daemons {
        site.until("all hear each other", || {
            // Somebody may have set a node down last of all.
            if !slurmctld.read("job").contains("RUNNING") {
                slurmctld.run();
            }
            let peers = daemon.status().peers;
            let alive = peers
                .iter()
                .filter(|peer| peer.state == "alive" && peer.jobs == [8.into()]);
            (alive.count() == 3).then_some(())
        });
    }
}

/// Until then nobody who took a side, or has just started, has a say.
fn wait_for_a_say() {
    sleep(Duration::from_millis(HOLD_MS + 1000));
}

#[test]
fn of_a_network_that_is_cut_one_half_at_most_asks_slurmctld_and_all_is_well_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let made = Network::make().and_then(|network| Ok((network, Munged::start(folder.path())?)));
    let (network, _munged) = match made {
        Ok(made) => made,
        Err(e) => return eprintln!("skipped: a network cannot be made here: {e}"),
    };
    network.first_has(&["n1", "n2"]);
    let slurmctld = Slurmctld(folder.path().join("slurmctld"));
    fs::create_dir(&slurmctld.0).unwrap();
    slurmctld.write("pending", &job("PENDING", "(null)"));
    slurmctld.run();
    let mut conf = format!(
        "AuthInfo=socket={}\n",
        folder.path().join("socket").display()
    );
    for (at, node) in NODES.iter().enumerate() {
        conf += &format!("NodeName={node} NodeAddr=10.77.0.{} Port=16818\n", at + 1);
        slurmctld.write(&format!("state.{node}"), "IDLE");
        slurmctld.write(&format!("reason.{node}"), "");
        network.slurmd(node);
    }
    fs::write(folder.path().join("slurm.conf"), conf).unwrap();
    slurmctld.write("jobs.awk", JOBS);
    let sites = NODES.map(Site::of);
    let daemons: Vec<Daemon<'_>> = NODES
        .iter()
        .zip(&sites)
        .map(|(node, site)| {
            fs::write(site.path("gpuos.toml"), "[heartbeat]\nact = \"down\"\n").unwrap();
            let script = SLURM
                .replace("OWN", node)
                .replace("CTL", slurmctld.0.to_str().unwrap());
            for name in ["scontrol", "squeue"] {
                program(&site.path(name), &script);
            }
            let mut command = Command::new("ip");
            command.args([
                "netns",
                "exec",
                &network.space(node),
                env!("CARGO_BIN_EXE_gpuosd"),
            ]);
            command.env("SLURM_CONF", folder.path().join("slurm.conf"));
            site.start_under(command, &[])
        })
        .collect();
    let site = &sites[0];
    let well = || {
        for node in NODES {
            site.until("the node is back", || {
                (slurmctld.read(&format!("state.{node}")).trim() == "IDLE").then_some(())
            });
        }
    };
    all_hear(site, &daemons, &slurmctld);
    wait_for_a_say();

    // A moment is no matter. Where a busy machine has made more of it, nothing is known by it: once more.
    for _ in 0..3 {
        let before = slurmctld.downs().len();
        let begun = Instant::now();
        network.cut(true);
        sleep(Duration::from_secs(1));
        network.cut(false);
        let took = begun.elapsed();
        sleep(Duration::from_secs(3));
        all_hear(site, &daemons, &slurmctld);
        if took < Duration::from_millis(1900) {
            let downs = slurmctld.downs();
            assert!(downs[before..].is_empty(), "{downs:?}");
            break;
        }
        well();
        wait_for_a_say();
    }

    // Two and two: the half with the job's first node. The other half reaches slurmctld as well, and asks nothing.
    let before = slurmctld.downs().len();
    network.cut(true);
    let began = Instant::now();
    site.until("slurmctld is asked", || {
        (slurmctld.downs().len() > before).then_some(())
    });
    eprintln!("asked after {:.1} s", began.elapsed().as_secs_f64());
    sleep(Duration::from_secs(10));
    eprintln!("while it is cut:\n{}", slurmctld.read("log"));
    let downs = slurmctld.downs();
    for (own, other) in &downs[before..] {
        assert!(["n1", "n2"].contains(&&own[..]), "{downs:?}");
        assert!(["n3", "n4"].contains(&&other[..]), "{downs:?}");
    }
    network.cut(false);
    all_hear(site, &daemons, &slurmctld);
    well();
    // A node has resumed itself, and no other.
    let log = slurmctld.read("log");
    for line in log.lines().filter(|line| line.contains("State=RESUME")) {
        let own = line.split(' ').next().unwrap();
        assert!(line.contains(&format!("NodeName={own} ")), "{log}");
    }

    // The first node alone, and only that reaches slurmctld: nobody is set down. Then the others reach it too.
    network.first_has(&["n1"]);
    wait_for_a_say();
    all_hear(site, &daemons, &slurmctld);
    let before = slurmctld.downs().len();
    for node in &NODES[1..] {
        slurmctld.write(&format!("away.{node}"), "");
    }
    network.cut(true);
    sleep(Duration::from_secs(12));
    assert_eq!(slurmctld.downs().len(), before, "{}", slurmctld.read("log"));
    for node in &NODES[1..] {
        fs::remove_file(slurmctld.0.join(format!("away.{node}"))).unwrap();
    }
    site.until("slurmctld is asked", || {
        (slurmctld.downs().len() > before).then_some(())
    });
    sleep(Duration::from_secs(5));
    for (own, other) in &slurmctld.downs()[before..] {
        assert!(own != "n1" && other == "n1", "{:?}", slurmctld.downs());
    }
    network.cut(false);
    all_hear(site, &daemons, &slurmctld);
    well();
    assert!(slurmctld.read("job").contains("RUNNING"));
    let log = slurmctld.read("log");
    assert!(
        !log.contains("scancel") && !log.contains("requeue"),
        "{log}"
    );
}
