//! gpuos beside pbs_cgroups on a real PBS: one host's GPUs are given by gpuos, another's by pbs_cgroups, where gpuos only advises. Wherever
//! `$GPUOS_TEST_PBS` names an installation and this machine has control groups of version 1, which pbs_cgroups needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{MOM, PbsLab};
use gpuos_tests::plugins::{built, daemons, programs};
use gpuos_tests::{Needs, costs, pbs_with};
use serde_json::{Value, json};

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(240);
const GPUS: usize = 8;
/// The host whose GPUs gpuos gives, and the one on which it only advises.
const OWN: &str = "n1";
const BESIDE: &str = "n2";
/// The controllers that pbs_cgroups uses here.
const CONTROLLERS: [&str; 2] = ["devices", "memory"];

/// What a job finds: where it is, what it is told, which device files it may open, and the device group that it is in. It goes on until there is
/// a file.
const SCRIPT: &str = r#"J=$WORK/$PBS_JOBID
{
    hostname
    echo "visible=$CUDA_VISIBLE_DEVICES"
    echo "gpuos=$GPUOS_GPUS"
    printf 'opens='
    for n in 0 1 2 3 4 5 6 7; do
        LC_ALL=C sh -c ": </dev/nvidia$n" 2>&1 | grep -q permitted || printf '%s ' $n
    done
    echo
    grep -E ':devices:|^0::' /proc/self/cgroup | tr '\n' ' '
    echo
} >$J.part
mv $J.part $J.found
while [ ! -e $J.end ] && [ ! -e $WORK/over ]; do sleep 0.2; done
"#;

fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

fn gpuos() -> String {
    programs().join("gpuos").display().to_string()
}

/// Whether the controllers are mounted, each by itself; says so where they are not.
fn has_version_1() -> bool {
    let at = |name: &&str| {
        Path::new("/sys/fs/cgroup")
            .join(name)
            .join("tasks")
            .is_file()
    };
    let there = CONTROLLERS.iter().all(at);
    if !there {
        eprintln!(
            "skipped: pbs_cgroups needs control groups of version 1, with devices and memory"
        );
    }
    there
}

/// Groups that pbs_cgroups makes on this machine, by the name of their folder, removed at the end.
struct Groups(String);

impl Drop for Groups {
    fn drop(&mut self) {
        let mounts = fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten();
        for folder in mounts.map(|mount| mount.path().join(&self.0)) {
            let jobs = folder.join("jobid");
            for one in fs::read_dir(&jobs).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(one.path());
            }
            let _ = fs::remove_dir(&jobs);
            let _ = fs::remove_dir(&folder);
        }
    }
}

/// A PBS with gpuos and pbs_cgroups, and a node for each.
struct Site {
    lab: PbsLab,
    work: PathBuf,
    /// UUIDs of the GPUs of the host on which gpuos only advises, by their minor numbers.
    uuids: Vec<String>,
    prefix: String,
    /// Gone after the lab, whose processes are in them.
    _groups: Groups,
}

/// What a job has found.
#[derive(Debug)]
struct Found {
    host: String,
    visible: String,
    gpuos: String,
    opens: BTreeSet<usize>,
    groups: String,
}

impl Site {
    fn up(prefix: &Path) -> Site {
        let spec = LabSpec {
            nodes: 2.into(),
            node_type: "dgx-h100".into(),
            pbs: Some(prefix.to_path_buf()),
            simulated_gpus: Some(daemons().to_path_buf()),
            ..LabSpec::unique("pbs-beside")
        };
        let lab = ran(PbsLab::up(&spec, &mut |step| eprintln!("{step}")));
        let own = format!("gpuos_{}", lab.record().id.replace('-', "_"));
        let groups = Groups(format!("{own}.service"));
        let library = lab
            .gpus_dir(BESIDE)
            .join("libnvidia-ml.so.1")
            .display()
            .to_string();
        let text = ran(lab.run_on(
            BESIDE,
            None,
            &gpuos(),
            &["discover", "--json", "--nvml", &library],
        ));
        let found: Value = serde_json::from_str(&text).unwrap();
        let gpus = found["gpus"].as_array().expect("GPUs").iter();
        let uuids = gpus.map(|gpu| gpu["uuid"].as_str().expect("a UUID").to_owned());
        let site = Site {
            work: lab.dir().join("work"),
            uuids: uuids.collect(),
            prefix: own,
            lab,
            _groups: groups,
        };
        assert_eq!(site.uuids.len(), GPUS, "{text}");
        site.hardware();
        site.install();
        site
    }

    /// What pbs_cgroups looks at: nvidia-smi, and devices of the PCI bus.
    fn hardware(&self) {
        let gpu = |(minor, uuid): (usize, &String)| {
            format!(
                "<gpu id=\"00000000:{:02X}:00.0\"><uuid>{uuid}</uuid><minor_number>{minor}</minor_number></gpu>",
                16 + minor
            )
        };
        let gpus: String = self.uuids.iter().enumerate().map(gpu).collect();
        let smi = self.work.join("nvidia-smi");
        let text = format!("#!/bin/sh\necho '<nvidia_smi_log>{gpus}</nvidia_smi_log>'\n");
        fs::write(&smi, text).unwrap();
        fs::set_permissions(&smi, fs::Permissions::from_mode(0o755)).unwrap();
        let make = "mount -t tmpfs none /sys/bus/pci/devices && for n in 0 1 2 3 4 5 6 7; do \
                    d=/sys/bus/pci/devices/$(printf '0000:%02x:00.0' $((16 + n))); mkdir $d && echo 0 >$d/numa_node; done";
        ran(self.lab.run_on(BESIDE, None, "sh", &["-c", make]));
    }

    fn install(&self) {
        let config = json!({
            "cgroup_prefix": self.prefix, "run_only_on_hosts": [BESIDE], "exclude_hosts": [], "exclude_vntypes": [],
            "vnode_per_numa_node": false, "discover_gpus": true, "manage_rlimit_as": false,
            "nvidia-smi": self.work.join("nvidia-smi"),
            "cgroup_lock_file": "/run/pbs_cgroups.lock",
            "cgroup": {
                "cpuacct": { "enabled": false }, "cpuset": { "enabled": false }, "memsw": { "enabled": false }, "hugetlb": { "enabled": false },
                "devices": { "enabled": true, "allow": ["b *:* rwm", "c 1:* rwm", "c 5:* rwm", "c 136:* rwm", "c 195:255 rwm"] },
                "memory": { "enabled": true, "default": "256MB", "reserve_amount": "64MB", "enforce_default": true },
            },
        });
        let file = self.work.join("pbs_cgroups.CF");
        fs::write(&file, config.to_string()).unwrap();
        let qmgr = |line: &str| ran(self.lab.run("qmgr", &["-c", line]));
        qmgr(&format!(
            "import hook pbs_cgroups application/x-config default {}",
            file.display()
        ));
        qmgr("set hook pbs_cgroups enabled = true");
        let own = json!({ "leaf": "l1", "gpus": vec![json!({}); GPUS] });
        let gpu = |uuid: &String| json!({ "uuid": uuid, "nvlink": "n2" });
        let gpus: Vec<Value> = self.uuids.iter().map(gpu).collect();
        let beside = json!({ "leaf": "l2", "advise": true, "gpus": gpus });
        let hosts = self.work.join("gpus.json");
        fs::write(&hosts, json!({ OWN: own, BESIDE: beside }).to_string()).unwrap();
        let library = built().join("libgpuos_pbs_hook.so").display().to_string();
        let hosts = hosts.display().to_string();
        // What is required of gpuos's own hosts is nothing that hinders others.
        let words = [
            "pbs",
            "install",
            "--hosts",
            &hosts,
            "--library",
            &library,
            "--confine",
            "require",
        ];
        let said = ran(self.lab.run(&gpuos(), &words));
        assert!(said.contains("On n2 another one gives GPUs"), "{said}");
        for node in [OWN, BESIDE] {
            let folder = self.lab.home(node).join("mom_priv/hooks");
            self.until("a mom has both hooks", || {
                let parts = ["HK", "PY", "CF"]
                    .map(|part| [format!("gpuos.{part}"), format!("pbs_cgroups.{part}")]);
                parts
                    .iter()
                    .flatten()
                    .all(|part| folder.join(part).is_file())
            });
            ran(self.lab.kill(node, MOM, 15));
            ran(self.lab.start(node, MOM));
        }
        self.until("all GPUs are counted, and all vnodes free", || {
            let vnodes = self.vnodes();
            let counted: u64 = vnodes
                .values()
                .map(|vnode| number(&vnode["resources_available"]["ngpus"]))
                .sum();
            let beside = &vnodes.get(BESIDE).cloned().unwrap_or_default()["resources_available"];
            let told = beside["gpuos_leaf"] == "l2" && vnodes.len() == 2;
            told && counted == 2 * GPUS as u64
                && vnodes.values().all(|vnode| vnode["state"] == "free")
        });
    }

    fn until(&self, what: &str, there: impl Fn() -> bool) {
        let began = Instant::now();
        while !there() {
            if began.elapsed() > LIMIT {
                let vnodes = self.lab.run("pbsnodes", &["-av"]).unwrap_or_default();
                let jobs = self.lab.run("qstat", &["-xf"]).unwrap_or_default();
                let log = self.lab.daemon_log(BESIDE, MOM);
                let noise =
                    |line: &&str| !line.contains("print_svrattrl") && !line.contains("perf_stat");
                let last: Vec<&str> = log.lines().rev().filter(noise).take(40).collect();
                panic!(
                    "not after {LIMIT:?}: {what}\n{vnodes}\n{jobs}\n{}",
                    last.join("\n")
                );
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// All vnodes, as pbs_server has them.
    fn vnodes(&self) -> BTreeMap<String, Value> {
        let text = self.lab.run("pbsnodes", &["-av", "-F", "json"]);
        let all: Value = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
        let nodes = all["nodes"].as_object().into_iter().flatten();
        nodes
            .map(|(name, vnode)| (name.clone(), vnode.clone()))
            .collect()
    }

    fn submit(&self, select: &str, options: &[&str]) -> String {
        let work = format!("WORK={}", self.work.display());
        let options = [&["-v", &work, "-l", select], options].concat();
        ran(self.lab.qsub(Some("user1"), &options, SCRIPT))
    }

    fn found(&self, job: &str) -> Found {
        let file = self.work.join(format!("{job}.found"));
        self.until(&format!("{job} has looked around"), || file.is_file());
        let text = fs::read_to_string(file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let of = |nth: usize, key: &str| lines[nth].strip_prefix(key).expect("its line").to_owned();
        let opens = of(3, "opens=");
        Found {
            host: lines[0].to_owned(),
            visible: of(1, "visible="),
            gpuos: of(2, "gpuos="),
            opens: opens
                .split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect(),
            groups: lines[4].to_owned(),
        }
    }

    fn health(&self) -> Value {
        let command = self.lab.command_on(BESIDE, None, &gpuos());
        let said = ran(command).args(["health", "--json"]).output();
        let said = said.expect("gpuos runs").stdout;
        let mut said: Value = serde_json::from_slice(&said).unwrap_or_default();
        said["status"].take()
    }
}

/// A count of PBS's, which may be a text.
fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .or_else(|| value.as_str()?.parse().ok())
        .unwrap_or(0)
}

#[test]
fn no_gpu_is_counted_or_given_twice_and_where_pbs_cgroups_gives_them_gpuos_only_advises() {
    let Some(prefix) = pbs_with("gpuos beside pbs_cgroups", Needs::RealPbs) else {
        return;
    };
    if !has_version_1() {
        return;
    }
    let _cost = costs::of("slurm::pbs_beside");
    let site = Site::up(&prefix);
    let lab = &site.lab;
    let vnodes = site.vnodes();
    let ngpus = |name: &str| number(&vnodes[name]["resources_available"]["ngpus"]);
    assert_eq!(
        (ngpus(OWN), ngpus(BESIDE)),
        (GPUS as u64, GPUS as u64),
        "{vnodes:?}"
    );
    let available = &vnodes[BESIDE]["resources_available"];
    assert_eq!(
        (&available["gpuos_leaf"], &available["gpuos_nvlink"]),
        (&json!("l2"), &json!("n2"))
    );

    // Jobs of one and of two GPUs, more than there are GPUs, with and without a word to gpuos.
    let jobs: Vec<String> = (0..14)
        .map(|nth| {
            let select = format!("select=1:ncpus=0:ngpus={}", 1 + nth % 2);
            let leaf = ["-l", "gpuos_topology=leaf"];
            site.submit(&select, if nth % 3 == 0 { &leaf } else { &[] })
        })
        .collect();
    let running = || {
        let states = jobs
            .iter()
            .filter(|job| site.work.join(format!("{job}.found")).is_file());
        states.cloned().collect::<Vec<String>>()
    };
    // What each has by its own word is held against all others that run at the same time.
    let mut seen: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let mut hosts = BTreeSet::new();
    site.until("many jobs run at once", || running().len() >= 8);
    for job in running() {
        let found = site.found(&job);
        let wanted = 1 + jobs.iter().position(|one| *one == job).unwrap() % 2;
        assert_eq!(found.opens.len(), wanted, "{job}: {found:?}");
        match &found.host[..] {
            OWN => {
                assert!(
                    !found.gpuos.is_empty() && found.visible == found.gpuos,
                    "{found:?}"
                );
                assert!(
                    found.groups.contains(&format!("/gpuos/n1/job_{job}")),
                    "{found:?}"
                );
            }
            _ => {
                let own: Vec<&str> = found
                    .opens
                    .iter()
                    .map(|gpu| &site.uuids[*gpu][..])
                    .collect();
                let mut told: Vec<&str> = found.visible.split(',').collect();
                told.sort_by_key(|uuid| site.uuids.iter().position(|one| one == uuid));
                assert_eq!(told, own, "{found:?}");
                assert_eq!(found.gpuos, "", "gpuos gives nothing there");
                assert!(
                    found
                        .groups
                        .contains(&format!("{}.service/jobid/{job}", site.prefix)),
                    "{found:?}"
                );
                assert!(!found.groups.contains("/gpuos/"), "{found:?}");
            }
        }
        let taken = seen.entry(found.host.clone()).or_default();
        for gpu in &found.opens {
            assert!(
                taken.insert(*gpu),
                "GPU {gpu} of {} is given twice: {job}",
                found.host
            );
        }
        hosts.insert(found.host);
    }
    assert_eq!(hosts.len(), 2, "jobs run on both: {seen:?}");

    // gpuosd there knows who has which GPU, by what pbs_cgroups notes.
    let beside = running()
        .into_iter()
        .find(|job| site.found(job).host == BESIDE);
    let beside = beside.expect("one runs there");
    let own = site.found(&beside).opens;
    site.until("gpuosd knows whose GPUs they are", || {
        let status = site.health();
        own.iter()
            .all(|gpu| status["gpus"][*gpu]["jobs"].to_string().contains(&beside))
    });
    assert_eq!(site.health()["daemon"]["advises"], true);

    // A GPU that fails is said in the host's comment; its job goes on, and the host stays in service.
    let bad = *own.first().expect("it has a GPU");
    ran(lab.fault(BESIDE, &format!("gpu{bad}"), &["row-remap", "failure"]));
    let comment = || {
        site.vnodes()[BESIDE]["comment"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    site.until("the comment advises", || {
        comment().starts_with("gpuos advises: GPU")
    });
    assert!(comment().contains(&format!("GPU {bad} ")), "{}", comment());
    // Longer than a job that had to end would be left.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(25) {
        sleep(Duration::from_secs(1));
        let state = site.vnodes()[BESIDE]["state"].to_string();
        assert!(!state.contains("offline"), "{state}");
    }
    assert_eq!(ran(lab.job(&beside, "job_state")).as_deref(), Some("R"));
    assert_eq!(ran(lab.job(&beside, "run_count")).as_deref(), Some("1"));
    // Mended and looked at by an administrator, it is not advised any more; what he writes himself stays.
    ran(lab.fault(BESIDE, &format!("gpu{bad}"), &["repair"]));
    let gpu = format!("{BESIDE}:{bad}");
    ran(lab.run_on(
        BESIDE,
        None,
        &gpuos(),
        &["online", &gpu, "--local", "--force"],
    ));
    site.until("nothing is advised", || comment().is_empty());

    fs::write(site.work.join("over"), "").unwrap();
    for job in &jobs {
        ran(lab.wait_job(job, &["F"], LIMIT));
        assert_eq!(
            ran(lab.job(job, "Exit_status")).as_deref(),
            Some("0"),
            "{job}"
        );
    }
    let ends = site.vnodes();
    assert!(
        ends.values()
            .all(|vnode| !vnode["state"].to_string().contains("offline")),
        "{ends:?}"
    );
}
