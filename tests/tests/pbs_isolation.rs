//! Jobs of a PBS that are kept to their GPUs by gpuosd, on simulated GPUs with device files, where
//! this machine lets control groups of version 2 be made; those of version 1 too, where it has the controller `devices`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{GPUOSD, MOM, PbsLab};
use gpuos_model::gpuset::GpuSet;
use gpuos_tests::plugins::{built, daemons, programs};
use gpuos_tests::{Needs, costs, pbs, pbs_with};
use serde_json::{Value, json};

use crate::pbs_site::{reaches, start_waiting};

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(240);
const GPUS: usize = 8;

/// Which device files whoever runs it may open: without a driver an open that is allowed says that there is no device.
const PROBE: &str = r#"#!/bin/sh
for n in 0 1 2 3 4 5 6 7 ctl; do
    if LC_ALL=C sh -c ": </dev/nvidia$n" 2>&1 | grep -q permitted; then printf 'no '; else printf 'yes '; fi
done >"$1.part"
mv "$1.part" "$1"
"#;

/// The numbers of the device files of MIG instances that whoever runs it may open.
const INSTANCES: &str = r#"#!/bin/sh
for file in /dev/nvidia-caps/nvidia-cap*; do
    LC_ALL=C sh -c ": <$file" 2>&1 | grep -q permitted || printf '%s ' "${file##*cap}"
done >"$1.part"
mv "$1.part" "$1"
"#;
/// Where these files are, what their major number is in a lab, and which the driver has for the GPU that is divided.
const CAPS: &str = "/dev/nvidia-caps";
const MAKE_CAPS: &str = "mkdir -p /dev/nvidia-caps && cd /dev/nvidia-caps && for n in $(seq 948 1082); do mknod -m 666 nvidia-cap$n c 120 $n; done";
const DIVIDED: usize = 7;

/// A way out of a group: into each of those above, and into one of one's own.
const LEAVE: &str = r#"#!/bin/sh
own=$(sed -n 's/^0:://p' /proc/self/cgroup)
at=$own
while :; do
    { echo $$ >"$1$at/cgroup.procs"; } 2>/dev/null
    mkdir "$1$at/mine" 2>/dev/null
    rmdir "$1$at" 2>/dev/null
    [ -n "$at" ] || break
    at=${at%/*}
done
[ "$(sed -n 's/^0:://p' /proc/self/cgroup)" = "$own" ] && echo kept >"$2.part" || echo left >"$2.part"
mv "$2.part" "$2"
"#;

/// What somebody says to gpuosd's sockets, and what comes back.
const ASKS: &str = r#"
import socket, sys
for path in ("/run/gpuos/gpuosd.sock", "/run/gpuos/gpuosd.sock.root"):
    try:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(20)
        s.connect(path)
        s.sendall(b'{"ask":"hello","protocol":1,"client":"x"}\n{"ask":"confine","job":"1.head","pid":%d,"started":1}\n' % int(sys.argv[1]))
        said = b""
        while said.count(b"\n") < 2:
            more = s.recv(4096)
            if not more:
                break
            said += more
        print(said.decode())
    except OSError as why:
        print("refused", why)
"#;

fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

fn gpuos() -> String {
    programs().join("gpuos").display().to_string()
}

/// Where version 2 is mounted; `None`, and why, where nobody can make groups.
fn version_2() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let at = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let at = words.next().filter(|at| at.starts_with("/sys/fs/cgroup"))?;
        (words.next() == Some("cgroup2")).then(|| PathBuf::from(at))
    });
    let tried = at.filter(|at| {
        let folder = at.join(format!("gpuos-tried-{}", std::process::id()));
        fs::create_dir(&folder)
            .and_then(|()| fs::remove_dir(&folder))
            .is_ok()
    });
    if tried.is_none() {
        eprintln!("skipped: this machine lets nobody make control groups of version 2");
    }
    tried
}

/// Where the controller `devices` of version 1 is mounted; `None`: nowhere.
fn version_1() -> Option<PathBuf> {
    let at = PathBuf::from("/sys/fs/cgroup/devices");
    at.join("devices.deny").is_file().then_some(at)
}

/// A PBS with one node of eight simulated GPUs, whose jobs are kept to theirs.
struct Site {
    lab: PbsLab,
    groups: PathBuf,
    work: PathBuf,
}

/// A folder of version 1 of the test's own, in the place of all of it; removed at the end.
struct Devices(PathBuf);

impl Devices {
    fn make(site: &Site) -> Option<Devices> {
        let made = version_1().map(|at| at.join(format!("gpuos-lab-{}", site.lab.record().id)));
        let made = made.filter(|folder| fs::create_dir(folder).is_ok());
        if made.is_none() {
            eprintln!(
                "skipped: this machine lets nobody make control groups of version 1 with devices"
            );
        }
        let folder = made?;
        let cgroup = site.work.join("cgroup");
        fs::create_dir(&cgroup).expect("a folder");
        std::os::unix::fs::symlink(&folder, cgroup.join("devices")).expect("a link");
        Some(Devices(folder))
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let below = |folder: &Path| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let folders = entries
                .map(|entry| entry.path())
                .filter(|path| path.is_dir());
            folders.collect::<Vec<_>>()
        };
        let began = Instant::now();
        while self.0.exists() && began.elapsed() < Duration::from_secs(20) {
            for job in below(&self.0.join("gpuos/n1")) {
                let _ = fs::remove_dir(job);
            }
            for folder in ["gpuos/n1", "gpuos", ""] {
                let _ = fs::remove_dir(self.0.join(folder));
            }
            sleep(Duration::from_millis(50));
        }
    }
}

impl Site {
    fn up(prefix: &Path, name: &str, confine: &str) -> Option<Site> {
        Site::divided(prefix, name, (confine, GpuSet::EMPTY))
    }

    /// With GPUs that are divided into slices.
    fn divided(prefix: &Path, name: &str, (confine, divided): (&str, GpuSet)) -> Option<Site> {
        let mount = version_2()?;
        let spec = LabSpec {
            nodes: 1.into(),
            node_type: "dgx-h100".into(),
            mig: divided,
            pbs: Some(prefix.to_path_buf()),
            simulated_gpus: Some(daemons().to_path_buf()),
            ..LabSpec::unique(name)
        };
        let lab = ran(PbsLab::up(&spec, &mut |step| eprintln!("{step}")));
        let own = mount.join(format!("gpuos-lab-{}", lab.record().id));
        let work = lab.dir().join("work");
        for (name, text) in [("probe", PROBE), ("leave", LEAVE), ("instances", INSTANCES)] {
            let file = work.join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let site = Site {
            groups: own.join("gpuos/n1"),
            work,
            lab,
        };
        site.install(confine);
        Some(site)
    }

    fn install(&self, confine: &str) {
        let hosts = self.work.join("gpus.json");
        let host = json!({ "n1": { "keep_cpus": 8, "gpus": vec![json!({}); GPUS] } });
        fs::write(&hosts, host.to_string()).unwrap();
        let library = built().join("libgpuos_pbs_hook.so").display().to_string();
        let hosts = hosts.display().to_string();
        let words = [
            "pbs",
            "install",
            "--hosts",
            &hosts,
            "--library",
            &library,
            "--confine",
            confine,
        ];
        ran(self.lab.run(&gpuos(), &words));
        let folder = self.lab.home("n1").join("mom_priv/hooks");
        self.until("mom has the hook", || {
            let parts = ["gpuos.HK", "gpuos.PY", "gpuos.CF"];
            parts.iter().all(|part| folder.join(part).is_file())
        });
        self.until("the host is free, and shows it", || {
            let text = self.lab.run("pbsnodes", &["-av"]).unwrap_or_default();
            text.contains("state = free") && text.contains("gpuos_host = whole=")
        });
        self.knows();
    }

    fn knows(&self) {
        self.until("gpuosd knows the device files", || {
            self.health()["isolation"]["devices"]
                .as_str()
                .is_some_and(|said| said.contains("by control groups in"))
        });
    }

    /// Starts gpuosd anew with other values of some of its flags.
    fn gpuosd_with(&self, flags: &[(&str, &str)]) {
        let pid = self.lab.pid("n1", GPUOSD).expect("gpuosd runs");
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let text = String::from_utf8(line).unwrap();
        let mut words: Vec<String> = text.split_terminator('\0').map(String::from).collect();
        for (flag, value) in flags {
            let at = words
                .iter()
                .position(|word| word == flag)
                .expect("lab's flag");
            words[at + 1] = (*value).to_owned();
        }
        ran(self.lab.kill("n1", GPUOSD, 15));
        let log = self.work.join("gpuosd.log").display().to_string();
        let start = format!("setsid \"$@\" >{log} 2>&1 </dev/null &");
        let mut given = vec!["-c", &start, "sh"];
        given.extend(words.iter().map(String::as_str));
        ran(self.lab.run_on("n1", None, "sh", &given));
        self.until("gpuosd runs", || self.lab.pid("n1", GPUOSD).is_some());
        self.knows();
    }

    /// The numbers of the device files that open an instance in these slices, by what gpuosd has written for them.
    fn of_slices(&self, slices: &str) -> BTreeSet<u32> {
        let (gpu, range) = slices.split_once(':').expect("GPU and slices");
        let (first, _) = range.split_once('-').expect("slices");
        let pid = self.lab.pid("n1", GPUOSD).expect("gpuosd runs");
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let text = String::from_utf8(line).unwrap();
        let mut words = text.split('\0').skip_while(|word| *word != "--slices");
        let folder = words.nth(1).expect("the lab names the folder");
        let text = fs::read_to_string(format!("{folder}/gpu{gpu}s{first}")).unwrap();
        let caps = text
            .lines()
            .filter_map(|line| line.rsplit_once("nvidia-cap"));
        caps.filter_map(|(_, number)| number.parse().ok()).collect()
    }

    fn health(&self) -> Value {
        let said = self.lab.run_on("n1", None, &gpuos(), &["health", "--json"]);
        let mut said: Value = serde_json::from_str(&said.unwrap_or_default()).unwrap_or_default();
        said["status"].take()
    }

    fn until(&self, what: &str, there: impl Fn() -> bool) {
        let began = Instant::now();
        while !there() {
            start_waiting(&self.lab);
            if began.elapsed() > LIMIT {
                let jobs = self.lab.run("qstat", &["-xf"]).unwrap_or_default();
                let log = self.lab.gpuosd_log("n1");
                panic!(
                    "not after {LIMIT:?}: {what}\n{}\n{jobs}\n{log}",
                    self.health()
                );
            }
            sleep(Duration::from_millis(200));
        }
    }

    fn submit(&self, user: &str, select: &str, script: &str) -> String {
        let told = self.work.join("$PBS_JOBID");
        let told = told.display();
        let script = format!("echo $GPUOS_GPUS >{told}.part\nmv {told}.part {told}.gpus\n{script}");
        ran(self.lab.qsub(Some(user), &["-l", select], &script))
    }

    /// What a job's script writes into a file, once it is there.
    fn wrote(&self, job: &str, what: &str) -> String {
        let file = self.work.join(format!("{job}.{what}"));
        self.until(&format!("{job} has written {what}"), || file.is_file());
        fs::read_to_string(file).unwrap().trim().to_owned()
    }

    /// What a job may open: its own GPUs and what is everybody's.
    fn own(&self, job: &str) -> String {
        let given = self.lab.job(job, "exec_vnode").ok().flatten();
        let given = given.unwrap_or_default();
        let counts = given.split("ngpus=").skip(1);
        let count: usize = counts
            .filter_map(|rest| rest.split([':', ')', '+']).next()?.parse::<usize>().ok())
            .sum();
        // Which ones they are its programs were told.
        let told = self.work.join(format!("{job}.gpus"));
        if count > 0 {
            self.until("its script was told its GPUs", || told.is_file());
        }
        let told = fs::read_to_string(told).unwrap_or_default();
        let own: Vec<&str> = told
            .trim()
            .split(',')
            .filter(|gpu| !gpu.is_empty())
            .collect();
        assert_eq!(own.len(), count, "{job}: {told}");
        let gpus = (0..GPUS).map(|gpu| own.contains(&&gpu.to_string()[..]));
        let words = gpus.chain([true]).map(|own| if own { "yes" } else { "no" });
        words.collect::<Vec<_>>().join(" ")
    }

    /// A file for which the scripts of jobs wait.
    fn signal(&self, name: &str) {
        fs::write(self.work.join(name), "").unwrap();
    }

    fn group_of(&self, job: &str) -> PathBuf {
        self.groups.join(format!("job_{job}"))
    }
}

/// Looks in itself, in a child of another session, and in a task of pbsdsh; and once more, later.
fn script(prefix: &Path, work: &Path, mount: &Path) -> String {
    let (prefix, d, mount) = (prefix.display(), work.display(), mount.display());
    format!(
        "J={d}/$PBS_JOBID\n{d}/probe $J.direct\nsetsid {d}/probe $J.child\n{prefix}/bin/pbsdsh -- {d}/probe $J.task\n\
         {d}/leave {mount} $J.out\n{d}/probe $J.after\n\
         while [ ! -e {d}/again ]; do sleep 0.2; done\n{d}/probe $J.later\n\
         while [ ! -e {d}/end ]; do sleep 0.2; done\n"
    )
}

#[test]
fn each_job_opens_its_own_gpus_and_none_of_others() {
    let Some(prefix) = pbs_with("jobs of PBS that are kept to their GPUs", Needs::RealPbs) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_isolation");
    let Some(site) = Site::up(&prefix, "pbs-confined", "try") else {
        return;
    };
    let lab = &site.lab;
    let mount = version_2().expect("it was there");
    let text = script(&prefix, &site.work, &mount);
    let one = site.submit("user1", "select=1:ncpus=1:ngpus=1", &text);
    let two = site.submit("user2", "select=2:ncpus=1:ngpus=1", &text);
    let none = site.submit("user1", "select=1:ncpus=1", &text);
    let all = [&one, &two, &none];
    for job in all {
        reaches(lab, job, "R", LIMIT);
    }
    let counts: Vec<usize> = all
        .iter()
        .map(|job| site.own(job).matches("yes").count())
        .collect();
    assert_eq!(counts, [2, 3, 1]);
    for job in all {
        for place in ["direct", "child", "task", "after"] {
            assert_eq!(site.wrote(job, place), site.own(job), "{job} {place}");
        }
        assert_eq!(site.wrote(job, "out"), "kept", "{job}");
        assert!(site.group_of(job).is_dir());
    }
    // A user who asks himself, for a process of his own or of root.
    let asked = ran(lab.run_on("n1", Some("user1"), "python3", &["-c", ASKS, "1"]));
    assert!(asked.contains("only root may do that"), "{asked}");
    assert!(
        asked.contains("refused") && !asked.contains("\"done\""),
        "{asked}"
    );

    // What the kernel keeps needs no gpuosd; the next one finds what there is.
    ran(lab.kill("n1", GPUOSD, 9));
    site.signal("again");
    for job in all {
        assert_eq!(site.wrote(job, "later"), site.own(job), "{job}");
    }
    ran(lab.start("n1", GPUOSD));
    site.until("gpuosd looks again", || {
        !site.health()["isolation"]["devices"].is_null()
    });
    for job in all {
        assert!(site.group_of(job).is_dir(), "{job}");
    }
    site.signal("end");
    for job in all {
        reaches(lab, job, "F", LIMIT);
    }
    site.until("the groups are gone", || {
        all.iter().all(|job| !site.group_of(job).exists())
    });
    // With `try` the first programs after a start of gpuosd are not kept: mom and NVIDIA's library have to tell it first.
    site.until("mom and NVIDIA's library have told gpuosd", || {
        let log = lab.gpuosd_log("n1");
        log.contains("pbs_mom answers again") && log.contains(" GPUs: ")
    });
    // An interactive job, from a terminal.
    let mut terminal = ran(lab.command_on("head", Some("user1"), "script"));
    let terminal = terminal
        .args(["-qec", "qsub -I -l select=1:ncpus=1:ngpus=1", "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let mut terminal = terminal.expect("script of util-linux starts");
    let typed = terminal.stdin.as_mut().expect("a pipe");
    let work = site.work.display();
    writeln!(typed, "{work}/probe {work}/typed.direct; exit").expect("it is typed");
    let typed = site.wrote("typed", "direct");
    let why = || lab.gpuosd_log("n1");
    assert_eq!(typed.matches("yes").count(), 2, "{}", why());
    drop(terminal.stdin.take());
    terminal.wait().expect("it ends");
    let vnodes = ran(lab.run("pbsnodes", &["-av"]));
    assert!(!vnodes.contains("offline"), "{vnodes}");
}

#[test]
fn where_it_is_required_a_program_waits_until_it_can_be_kept_to_its_gpus() {
    let Some(prefix) = pbs("jobs of PBS that have to be kept to their GPUs") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_isolation::required");
    let Some(site) = Site::up(&prefix, "pbs-required", "require") else {
        return;
    };
    let lab = &site.lab;
    ran(lab.kill("n1", GPUOSD, 9));
    let work = site.work.display();
    let text = format!("{work}/probe {work}/$PBS_JOBID.direct\n");
    let job = site.submit("user1", "select=1:ncpus=1:ngpus=1", &text);
    site.until("a start was refused, and the job is started again", || {
        let runs = lab
            .job(&job, "run_count")
            .ok()
            .flatten()
            .unwrap_or_default();
        runs.parse::<u32>().is_ok_and(|runs| runs > 1)
    });
    assert!(!site.work.join(format!("{job}.direct")).exists());
    let vnodes = ran(lab.run("pbsnodes", &["-av"]));
    assert!(!vnodes.contains("offline"), "{vnodes}");
    ran(lab.start("n1", GPUOSD));
    reaches(lab, &job, "F", LIMIT);
    assert_eq!(site.wrote(&job, "direct"), site.own(&job));
    assert_eq!(site.own(&job).matches("yes").count(), 2);

    // Without that word it starts as it is, soon, though gpuosd hangs.
    let copied = || {
        let log = lab.daemon_log("n1", MOM);
        log.matches("gpuos.CF;copy hook-related file").count()
    };
    let before = copied();
    let library = built().join("libgpuos_pbs_hook.so").display().to_string();
    let words = ["pbs", "install", "--library", &library, "--confine", "try"];
    ran(lab.run(&gpuos(), &words));
    site.until("mom has the new configuration", || copied() > before);
    let pid = lab.pid("n1", GPUOSD).expect("gpuosd runs").to_string();
    let signal = |name: &str| {
        let done = std::process::Command::new("kill")
            .args([name, &pid])
            .status();
        assert!(done.is_ok_and(|done| done.success()));
    };
    signal("-STOP");
    let job = site.submit("user1", "select=1:ncpus=1:ngpus=1", &text);
    reaches(lab, &job, "F", LIMIT);
    signal("-CONT");
    assert_eq!(site.wrote(&job, "direct").matches("yes").count(), GPUS + 1);
}

/// Two jobs with slices of one GPU, one with a whole GPU, and one with none.
fn jobs_with_slices_open_their_own(site: &Site, groups: &Path) {
    let lab = &site.lab;
    let work = site.work.display();
    let text = format!(
        "J={work}/$PBS_JOBID\necho \"$GPUOS_MIG_PLACEMENTS\" >$J.place.part && mv $J.place.part $J.place\n\
         {work}/probe $J.direct\n{work}/instances $J.instances\n\
         while [ ! -e {work}/over ]; do sleep 0.2; done\n"
    );
    let slices = ["-l", "select=1:ncpus=1", "-l", "gpuos_mig=1g.10gb"];
    let of = |user: &str| ran(lab.qsub(Some(user), &slices, &text));
    let (one, two) = (of("user1"), of("user2"));
    let whole = site.submit("user1", "select=1:ncpus=1:ngpus=1", &text);
    let none = site.submit("user2", "select=1:ncpus=1", &text);
    let opens = |job: &str| -> BTreeSet<u32> {
        let text = site.wrote(job, "instances");
        text.split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect()
    };
    let mut places = BTreeSet::new();
    for job in [&one, &two] {
        let place = site.wrote(job, "place");
        let own = site.of_slices(&place);
        assert_eq!(own.len(), 2, "GPU instance and compute instance of {place}");
        assert_eq!(opens(job), own, "{job} in {place}");
        // The GPU of its slices, and what is everybody's.
        assert_eq!(
            site.wrote(job, "direct"),
            "no no no no no no no yes yes",
            "{job}"
        );
        assert!(places.insert(place), "both have the same slices");
        assert!(groups.join(format!("job_{job}")).is_dir(), "{job}");
    }
    assert!(opens(&one).is_disjoint(&opens(&two)));
    for job in [&whole, &none] {
        assert_eq!(opens(job), BTreeSet::new(), "{job}");
        assert_eq!(site.wrote(job, "direct"), site.own(job), "{job}");
    }
    site.signal("over");
    for job in [&one, &two, &whole, &none] {
        reaches(lab, job, "F", LIMIT);
    }
    site.until("the groups are gone", || {
        fs::read_dir(groups).is_ok_and(|left| left.flatten().all(|one| !one.path().is_dir()))
    });
    fs::remove_file(site.work.join("over")).unwrap();
}

#[test]
fn jobs_with_slices_of_one_gpu_open_each_its_own_instances() {
    let Some(prefix) = pbs("jobs of PBS with slices that are kept to them") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_isolation::slices");
    let divided = GpuSet::EMPTY.with(DIVIDED);
    let Some(site) = Site::divided(&prefix, "pbs-slices", ("require", divided)) else {
        return;
    };
    ran(site.lab.run_on("n1", None, "sh", &["-c", MAKE_CAPS]));
    site.gpuosd_with(&[("--caps", CAPS)]);
    jobs_with_slices_open_their_own(&site, &site.groups);
    // The same with version 1.
    let Some(devices) = Devices::make(&site) else {
        return;
    };
    let cgroup = site.work.join("cgroup").display().to_string();
    site.gpuosd_with(&[("--cgroup", &cgroup)]);
    let groups = devices.0.join("gpuos/n1");
    jobs_with_slices_open_their_own(&site, &groups);
    let vnodes = ran(site.lab.run("pbsnodes", &["-av"]));
    assert!(!vnodes.contains("offline"), "{vnodes}");
}
