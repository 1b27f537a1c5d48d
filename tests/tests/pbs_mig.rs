//! `gpuos_mig`, `gpuos_power` and `gpuos_clocks` on a PBS with simulated GPUs: what
//! is asked is done before a program starts, and gone after its job.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{GPUOSD, MOM, PbsLab};
use gpuos_model::gpuset::GpuSet;
use gpuos_tests::mps::MPS_CONTROL;
use gpuos_tests::plugins::{built, daemons, programs};
use gpuos_tests::{Needs, costs, pbs, pbs_with};
use serde_json::json;

use crate::pbs_site::{reaches, start_waiting};

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(240);
const GPUS: usize = 8;
/// The GPU that is divided.
const GPU: usize = 7;
/// Writes what it finds, and goes on until it is ended.
const SHOW: &str = "echo \"$CUDA_VISIBLE_DEVICES $GPUOS_MIG_PROFILES $GPUOS_MIG_PLACEMENTS\" >$SEEN/$PBS_JOBID.new\n\
                    mv $SEEN/$PBS_JOBID.new $SEEN/$PBS_JOBID.seen\nsleep 10000\n";
const SMALL: [&str; 4] = ["-l", "select=1:ncpus=1", "-l", "gpuos_mig=1g.10gb"];

fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

fn gpuos() -> String {
    programs().join("gpuos").display().to_string()
}

/// A PBS with gpuos and nodes of eight simulated GPUs, of which the last ones are divided.
struct Site {
    lab: PbsLab,
    hosts: Vec<String>,
}

impl Site {
    /// One node, with one divided GPU.
    fn up(prefix: &Path, name: &str) -> Site {
        Site::of(prefix, name, (1, GpuSet::EMPTY.with(GPU)))
    }

    fn of(prefix: &Path, name: &str, (nodes, mig): (usize, GpuSet)) -> Site {
        let spec = LabSpec {
            nodes: nodes.into(),
            node_type: "dgx-h100".into(),
            pbs: Some(prefix.to_path_buf()),
            simulated_gpus: Some(daemons().to_path_buf()),
            mig,
            ..LabSpec::unique(name)
        };
        let lab = ran(PbsLab::up(&spec, &mut |step| eprintln!("{step}")));
        let hosts = (1..=nodes).map(|number| format!("n{number}")).collect();
        let site = Site { lab, hosts };
        site.install();
        site
    }

    fn install(&self) {
        let host = json!({ "gpus": vec![json!({}); GPUS] });
        let hosts = self.lab.dir().join("work/gpus.json");
        let all: BTreeMap<&String, _> = self.hosts.iter().map(|name| (name, &host)).collect();
        fs::write(&hosts, json!(all).to_string()).unwrap();
        let (hosts, library) = (
            hosts.display().to_string(),
            built().join("libgpuos_pbs_hook.so"),
        );
        let library = library.display().to_string();
        let words = ["pbs", "install", "--hosts", &hosts, "--library", &library];
        let said = ran(self.lab.run(&gpuos(), &words));
        assert!(
            said.contains("gpuos_mig_compute, gpuos_mig_memory"),
            "{said}"
        );
        for host in &self.hosts {
            let folder = self.lab.home(host).join("mom_priv/hooks");
            self.until("a mom has the hook", || {
                let parts = ["gpuos.HK", "gpuos.PY", "gpuos.CF"];
                parts.iter().all(|part| folder.join(part).is_file())
            });
        }
        self.until("all hosts are free, with what is counted", || {
            let text = self.lab.run("pbsnodes", &["-av"]).unwrap_or_default();
            let of_each = |words: &str| text.matches(words).count() == self.hosts.len();
            of_each("state = free")
                && of_each("gpuos_mig_fits = 8")
                && of_each("gpuos_host = whole=")
        });
    }

    fn until(&self, what: &str, there: impl Fn() -> bool) {
        let began = Instant::now();
        while !there() {
            start_waiting(&self.lab);
            if began.elapsed() > LIMIT {
                let jobs = self.lab.run("qstat", &["-x", "-f"]).unwrap_or_default();
                let log = self.lab.gpuosd_log("n1");
                panic!("not after {LIMIT:?}: {what}\n{jobs}\n{log}");
            }
            sleep(Duration::from_millis(100));
        }
    }

    fn submit(&self, options: &[&str], script: &str) -> String {
        let seen = format!("SEEN={}", self.lab.dir().join("work").display());
        let options = [&["-v", &seen], options].concat();
        ran(self.lab.qsub(Some("user1"), &options, script))
    }

    /// Why a job is not taken.
    fn refused(&self, options: &[&str]) -> String {
        match self.lab.qsub(Some("user1"), options, SHOW) {
            Err(why) => why.to_string(),
            Ok(job) => panic!("{job} was taken"),
        }
    }

    fn state(&self, job: &str) -> String {
        let state = self.lab.job(job, "job_state");
        state.ok().flatten().unwrap_or_default()
    }

    fn attribute(&self, job: &str, name: &str) -> String {
        self.lab.job(job, name).ok().flatten().unwrap_or_default()
    }

    /// UUID, profile and placement that a job's script found; empty before.
    fn seen(&self, job: &str) -> Vec<String> {
        let path = self.lab.dir().join(format!("work/{job}.seen"));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().map(String::from).collect()
    }

    fn runs(&self, job: &str) -> Vec<String> {
        self.until(&format!("the script of {job} runs"), || {
            !self.seen(job).is_empty()
        });
        self.seen(job)
    }

    fn nvml(&self, words: &[&str]) -> String {
        self.nvml_of("n1", words)
    }

    fn nvml_of(&self, host: &str, words: &[&str]) -> String {
        let mut command = Command::new(self.lab.dir().join("bin/gpuos-nvml"));
        let state = self.lab.gpus_dir(host).join("state");
        let out = command.arg("--state").arg(state).args(words).output();
        let out = out.expect("gpuos-nvml runs");
        assert!(out.status.success(), "{out:?}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// UUIDs of all instances that the driver has.
    fn instances(&self) -> BTreeSet<String> {
        let hosts = self.hosts.iter();
        hosts.flat_map(|host| self.instances_of(host)).collect()
    }

    fn instances_of(&self, host: &str) -> BTreeSet<String> {
        let text = self.nvml_of(host, &["instances"]);
        let uuids = text.lines().filter_map(|line| line.split(' ').nth(7));
        uuids.map(String::from).collect()
    }

    /// Deletes jobs, once more where PBS was about to start one, until they are over.
    fn delete(&self, jobs: &[&str]) {
        let over = |job: &&str| {
            let is_over = self.state(job) == "F";
            if !is_over {
                // It may end meanwhile.
                let _ = self.lab.run("qdel", &[job]);
            }
            is_over
        };
        self.until("the jobs are over", || {
            jobs.iter().filter(|job| !over(job)).count() == 0
        });
    }

    fn nothing_is_left(&self) {
        self.until("no instance is left", || self.instances().is_empty());
    }
}

#[test]
fn seven_small_slices_are_beside_each_other_on_one_gpu_and_no_eighth() {
    let Some(prefix) = pbs("slices of GPUs in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_mig");
    let site = Site::up(&prefix, "pbs-mig");
    let jobs: Vec<String> = (0..8).map(|_| site.submit(&SMALL, SHOW)).collect();
    let running = || {
        let all = jobs.iter().filter(|job| !site.seen(job).is_empty());
        all.collect::<Vec<_>>()
    };
    site.until("seven scripts run", || running().len() == 7);
    let found: Vec<Vec<String>> = running().iter().map(|job| site.seen(job)).collect();
    let uuids: BTreeSet<String> = found.iter().map(|one| one[0].clone()).collect();
    assert_eq!(uuids, site.instances());
    let places: BTreeSet<&String> = found.iter().map(|one| &one[2]).collect();
    assert_eq!(places.len(), 7, "{places:?}");
    assert!(found.iter().all(|one| one[1] == "1g.10gb"), "{found:?}");
    assert!(
        places.iter().all(|place| place.starts_with("7:")),
        "{places:?}"
    );
    let last = jobs.iter().find(|job| site.seen(job).is_empty());
    let last = last.expect("the eighth").clone();
    assert_eq!(site.state(&last), "Q");
    // A whole GPU beside it is another job's as ever.
    let whole = site.submit(&["-l", "select=1:ncpus=1:ngpus=1"], SHOW);
    assert!(!site.runs(&whole)[0].starts_with("MIG-"));

    // One ends, and the eighth has its place.
    let first = running()[0].clone();
    let gone = site.seen(&first)[0].clone();
    site.delete(&[&first]);
    let began = Instant::now();
    let own = site.runs(&last);
    eprintln!(
        "from the end of one to the script of the eighth: {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert!(site.instances().contains(&own[0]), "{own:?}");
    site.until("what the first had is gone", || {
        site.instances().len() == 7 && !site.instances().contains(&gone)
    });

    // gpuosd is killed, and finds in its journal whose each instance is; one ends meanwhile.
    let before = site.instances();
    ran(site.lab.kill("n1", GPUOSD, 9));
    site.delete(&[&last]);
    ran(site.lab.start("n1", GPUOSD));
    site.until("the instance of the job that ended is gone", || {
        let now = site.instances();
        now.len() == 6 && now.is_subset(&before) && !now.contains(&own[0])
    });

    // pbs_mom is killed, and ends what was there when it is back. What runs again has an instance again.
    ran(site.lab.kill("n1", MOM, 9));
    ran(site.lab.start("n1", MOM));
    site.until("PBS knows of no job on a mom that it has not", || {
        let text = site.lab.run("pbsnodes", &["-v", "n1"]).unwrap_or_default();
        text.contains("state = free") || text.contains("state = job-busy")
    });
    let all: Vec<&str> = jobs.iter().chain([&whole]).map(String::as_str).collect();
    site.delete(&all);
    site.nothing_is_left();
}

#[test]
fn slices_that_cannot_be_are_refused_and_no_room_on_a_host_puts_a_job_off() {
    let Some(prefix) = pbs("slices of GPUs without room in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_mig::room");
    let site = Site::up(&prefix, "pbs-mig-room");
    let one = "select=1:ncpus=1";
    for (select, asked, says) in [
        (
            one,
            "9g.90gb",
            "no GPU here has a profile 9g.90gb; write a profile of this cluster: 1g.10gb,",
        ),
        (one, "1g.10gb:8", "no GPU has so many at once"),
        (one, "3g.40gb:2,1g.10gb", "no GPU has so many at once"),
        (
            one,
            "1g.10gb:per-task",
            "PBS has no tasks of which each could have its own",
        ),
        (one, "3g", "; write "),
        (
            "select=2:ncpus=1",
            "3g.40gb,1g.10gb",
            "the job has 2 chunks, of which each has slices of one kind",
        ),
        (
            "select=1:ncpus=1:ngpus=1",
            "1g.10gb",
            "the job asks for whole GPUs too",
        ),
        ("walltime=60", "1g.10gb", "the job has no -l select="),
    ] {
        let why = site.refused(&["-l", select, "-l", &format!("gpuos_mig=\"{asked}\"")]);
        assert!(
            why.contains(&format!("gpuos_mig={asked}")) && why.contains(says),
            "{why}"
        );
    }

    // Two small ones stay, one in each half, so that three slices are free beside each other in number only.
    let small: Vec<String> = (0..7).map(|_| site.submit(&SMALL, SHOW)).collect();
    let slice = |job: &String| -> usize {
        let place = site.runs(job)[2].clone();
        let first = place.split([':', '-']).nth(1).map(str::parse);
        first.expect("7:0-0").expect("a slice")
    };
    let low = small.iter().find(|job| slice(job) == 0).expect("slice 0");
    let high = small.iter().find(|job| slice(job) == 4).expect("slice 4");
    let rest = small.iter().filter(|job| *job != low && *job != high);
    site.delete(&rest.map(String::as_str).collect::<Vec<_>>());
    let large = ["-l", one, "-l", "gpuos_mig=3g.40gb"];
    let wide = site.submit(&large, SHOW);
    site.until("the host has refused the job", || {
        site.attribute(&wide, "comment")
            .contains("were not to be had")
    });
    let comment = site.attribute(&wide, "comment");
    assert!(comment.contains("tried again in 10 s"), "{comment}");
    assert_eq!(
        (
            &site.state(&wide)[..],
            &site.attribute(&wide, "run_count")[..]
        ),
        ("W", "1")
    );
    let log = fs::read_dir(site.lab.home("n1").join("mom_logs")).unwrap();
    let log: String = log
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    assert!(
        log.contains("no placement for 3g.40gb is free"),
        "the log of mom"
    );

    site.delete(&[&wide]);

    // Another one is deleted while it waits for room on the host; the next has the room that becomes free.
    let deleted = site.submit(&large, SHOW);
    site.until("it waits on the host", || site.state(&deleted) == "R");
    sleep(Duration::from_secs(2));
    site.delete(&[&deleted]);
    let next = site.submit(&large, SHOW);
    site.until("it waits on the host", || site.state(&next) == "R");
    assert!(site.seen(&next).is_empty());
    // It goes on waiting over a gpuosd that is started anew.
    ran(site.lab.kill("n1", GPUOSD, 9));
    ran(site.lab.start("n1", GPUOSD));
    site.delete(&[low]);
    assert_eq!(site.runs(&next)[1], "3g.40gb");
    assert_eq!(site.attribute(&next, "run_count"), "1");
    assert!(site.seen(&deleted).is_empty());
    site.delete(&[&next]);

    // Without gpuosd no script of a job with slices runs, and the job stays.
    ran(site.lab.kill("n1", GPUOSD, 9));
    let lost = site.submit(&SMALL, SHOW);
    site.until("the host has refused it", || {
        site.attribute(&lost, "comment")
            .contains("were not to be had")
    });
    assert!(site.seen(&lost).is_empty());
    ran(site.lab.start("n1", GPUOSD));
    assert_eq!(site.runs(&lost)[1], "1g.10gb");
    site.delete(&[&lost, high]);
    site.nothing_is_left();
}

#[test]
fn subjobs_tasks_and_changed_jobs_have_their_slices() {
    let Some(prefix) = pbs_with("slices of arrays in PBS", Needs::RealPbs) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_mig::arrays");
    let site = Site::up(&prefix, "pbs-mig-array");
    let array = site.submit(&[&["-J", "1-2"], &SMALL[..]].concat(), SHOW);
    let of = |index: usize| array.replace("[]", &format!("[{index}]"));
    let both: BTreeSet<String> = [1, 2].map(|at| site.runs(&of(at))[0].clone()).into();
    assert_eq!((both.len(), &both), (2, &site.instances()));

    // What pbsdsh starts in a job finds the same as its script.
    let twice = ["-l", "select=1:ncpus=1", "-l", "gpuos_mig=1g.10gb:2"];
    let script = "echo $CUDA_VISIBLE_DEVICES\npbsdsh -- sh -c 'echo $CUDA_VISIBLE_DEVICES'\n";
    let tasks = site.submit(&twice, script);
    reaches(&site.lab, &tasks, "F", LIMIT);
    let said = site.lab.job_output(&tasks);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{said}");
    assert_eq!(lines[0].matches("MIG-").count(), 2, "{said}");

    // One that waits is changed, and one runs again by an administrator's word.
    let held = site.submit(&[&["-h"], &SMALL[..]].concat(), SHOW);
    ran(site.lab.run("qalter", &["-l", "gpuos_mig=3g.40gb", &held]));
    let select = site.attribute(&held, "Resource_List.select");
    assert!(
        select.contains("gpuos_mig_compute=3:gpuos_mig_memory=4"),
        "{select}"
    );
    ran(site.lab.run("qrls", &[&held]));
    assert_eq!(site.runs(&held)[1], "3g.40gb");
    let before = site.seen(&held);
    ran(site.lab.run("qrerun", &[&held]));
    site.until("it has another instance", || {
        site.seen(&held)[0] != before[0]
    });
    site.until("what it had before is gone", || {
        !site.instances().contains(&before[0])
    });
    assert!(site.instances().contains(&site.seen(&held)[0]));
    let _ = site.lab.run("qdel", &[&array]);
    site.delete(&[&held]);
    site.nothing_is_left();
}

#[test]
fn power_is_set_before_the_script_and_undone_after_it() {
    let Some(prefix) = pbs("power of GPUs in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_mig::power");
    let site = Site::up(&prefix, "pbs-power");
    let with = |words: &str| {
        let shown = site.nvml(&["show"]);
        let lines = shown.lines().filter(|line| line.contains(words));
        lines.count()
    };
    let two = "select=1:ncpus=1:ngpus=2";
    let why = site.refused(&["-l", two, "-l", "gpuos_power=hot"]);
    assert!(why.contains("-l gpuos_power=hot: "), "{why}");
    let why = site.refused(&["-l", "select=1:ncpus=1", "-l", "gpuos_power=300W"]);
    assert!(why.contains("the job asks for no GPU"), "{why}");

    let show = format!(
        "{0}/bin/gpuos-nvml --state {1}/state show | grep -c 'limit 300 W'\n",
        site.lab.dir().display(),
        site.lab.gpus_dir("n1").display()
    );
    let job = site.submit(&["-l", two, "-l", "gpuos_power=300W"], &show);
    reaches(&site.lab, &job, "F", LIMIT);
    assert_eq!(site.lab.job_output(&job).trim(), "2");
    site.until("the GPUs are as before", || with("limit") == 0);

    // What the board does not take is said to the job; a gpuosd that was killed undoes it all the same.
    let low = [
        "-l",
        two,
        "-l",
        "gpuos_power=100W",
        "-l",
        "gpuos_clocks=1200-1500",
    ];
    let low = site.submit(&low, &format!("echo here\n{SHOW}"));
    site.runs(&low);
    assert_eq!((with("limit 200 W"), with("clocks 1200-1500 MHz")), (2, 2));
    ran(site.lab.kill("n1", GPUOSD, 9));
    site.delete(&[&low]);
    let said = site.lab.job_output(&low);
    assert!(
        said.contains("gpuos: GPUs ") && said.contains("200 W is set for -l gpuos_power=100W"),
        "{said}"
    );
    let alone = site.submit(&["-l", two, "-l", "gpuos_power=400W"], "echo here\n");
    reaches(&site.lab, &alone, "F", LIMIT);
    let said = site.lab.job_output(&alone);
    assert!(
        said.contains("here") && said.contains("gpuosd does not run on this host"),
        "{said}"
    );
    ran(site.lab.start("n1", GPUOSD));
    site.until("the GPUs are as before", || {
        with("limit") + with("clocks") == 0
    });

    // MPS is there when the script's first line runs, and its folder goes after the job.
    let control = site.lab.dir().join("bin/nvidia-cuda-mps-control");
    fs::write(&control, MPS_CONTROL).unwrap();
    fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
    let script = "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PIPE_DIRECTORY $(cat $CUDA_MPS_PIPE_DIRECTORY/gpus)\n";
    let job = site.submit(&["-l", two, "-l", "gpuos_mps=50%"], script);
    reaches(&site.lab, &job, "F", LIMIT);
    let said = site.lab.job_output(&job);
    let words: Vec<&str> = said.split_whitespace().collect();
    let ["50", pipe, gpus] = words[..] else {
        panic!("{said}\n{}", site.lab.gpuosd_log("n1"));
    };
    assert_eq!(gpus.matches("GPU-").count(), 2);
    site.until("nothing of MPS is left", || {
        site.lab.run_on("n1", None, "test", &["-e", pipe]).is_err()
    });
}

#[test]
fn each_chunk_of_a_job_on_two_hosts_has_its_slices_on_one_gpu() {
    let Some(prefix) = pbs("slices of GPUs on two hosts in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_mig::hosts");
    let pool = GpuSet::EMPTY.with(GPU - 1).with(GPU);
    let site = Site::of(&prefix, "pbs-mig-hosts", (2, pool));
    // Three chunks of two hosts with two divided GPUs each: each program finds all that the job has on its host.
    let tell = "echo \"$(hostname) $CUDA_VISIBLE_DEVICES $GPUOS_MIG_PROFILES $GPUOS_MIG_PLACEMENTS\" >>$SEEN/$PBS_JOBID.all";
    let script = format!("pbsdsh -- sh -c '{tell}'\n{SHOW}");
    let three = ["-l", "select=3:ncpus=1", "-l", "gpuos_mig=3g.40gb"];
    let told = |job: &str| {
        let path = site.lab.dir().join(format!("work/{job}.all"));
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().map(str::to_owned);
        lines.collect::<BTreeSet<String>>()
    };
    let job = site.submit(&three, &script);
    let select = site.attribute(&job, "Resource_List.select");
    assert_eq!(select.matches("gpuos_mig_memory=4").count(), 1, "{select}");
    site.runs(&job);
    let lines = told(&job);
    let of = |host: &str| {
        let mut own = lines.iter().filter(|line| line.starts_with(host));
        // Another host may have none of it.
        let Some(line) = own.next() else {
            return 0;
        };
        assert_eq!(own.next(), None, "{lines:?}");
        let words: Vec<&str> = line.split(' ').collect();
        let uuids: BTreeSet<String> = words[1].split(',').map(String::from).collect();
        assert_eq!(uuids, site.instances_of(host), "{lines:?}");
        uuids.len()
    };
    let each = ["n1", "n2"].map(of);
    assert_eq!(each.iter().sum::<usize>(), 3, "{lines:?}");

    // Five more halves are free: a job with four chunks has four of them, and no second one has.
    let four = ["-l", "select=4:ncpus=1", "-l", "gpuos_mig=3g.40gb"];
    let (wide, waits) = (site.submit(&four, &script), site.submit(&four, &script));
    site.runs(&wide);
    assert_eq!(site.instances().len(), 7);
    site.until("pbs_sched has looked at it", || {
        !site.attribute(&waits, "comment").is_empty()
    });
    assert_eq!(site.state(&waits), "Q");

    // gpuosd of a host is killed, and one ends meanwhile: what it had there goes, and the next has it.
    ran(site.lab.run("qhold", &[&waits]));
    ran(site.lab.kill("n2", GPUOSD, 9));
    site.delete(&[&job]);
    ran(site.lab.start("n2", GPUOSD));
    site.until("what it had is gone", || site.instances().len() == 4);
    site.until("gpuosd there has heard mom", || {
        site.lab.gpuosd_log("n2").contains("pbs_mom answers again")
    });
    ran(site.lab.run("qrls", &[&waits]));
    site.runs(&waits);
    assert_eq!(site.instances().len(), 8, "{:?}", told(&waits));
    site.delete(&[&wide, &waits]);
    site.nothing_is_left();
}
