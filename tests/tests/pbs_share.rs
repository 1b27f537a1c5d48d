//! `gpuos_share` on a PBS with simulated GPUs and a simulated driver: jobs have a GPU in turns
//! with its memory, PBS counts how many, and nobody else has it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{GPUOSD, PbsLab};
use gpuos_tests::plugins::{built, daemons};
use gpuos_tests::{costs, pbs};
use serde_json::{Value, json};

use crate::memory_turns::CLIENT;
use crate::pbs_site::{cuda, gpuos, reaches, start_waiting};

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(240);
const GPUS: usize = 8;

/// Two jobs on a GPU at most. Of 81559 MiB so much is for contexts that the host has room for what is parked.
const GPUOS: &str =
    "[memory]\nturns = 2\nreserve-mib = 65536\n\n[[nodes]]\nmatch = \"n1\"\ntype = \"dgx-h100\"\n";

/// What a job asks for that has more than half of the rest, 16023 MiB, in turns.
const MOST: [&str; 4] = [
    "-l",
    "select=1:ncpus=1:mem=100mb",
    "-l",
    "gpuos_share=\"timeslice,mem=8020M\"",
];

/// What a job asks for that needs hardly any place.
const LITTLE: [&str; 4] = [
    "-l",
    "select=1:ncpus=1:mem=10mb",
    "-l",
    "gpuos_share=\"timeslice,mem=100M\"",
];

fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

/// A PBS whose one node has eight GPUs, of which jobs share the first.
struct Site {
    lab: PbsLab,
    cuda: PathBuf,
    work: PathBuf,
}

impl Site {
    fn up(prefix: &Path, name: &str) -> Site {
        let spec = LabSpec {
            nodes: 1.into(),
            node_type: "dgx-h100".into(),
            pbs: Some(prefix.to_path_buf()),
            simulated_gpus: Some(daemons().to_path_buf()),
            gpuos_toml: Some(GPUOS.into()),
            // Turns of a second, and moves that are taken to take no time.
            memory_turn: 1,
            ..LabSpec::unique(name)
        };
        let lab = ran(PbsLab::up(&spec, &mut |step| eprintln!("{step}")));
        let cuda = cuda(&lab);
        let work = lab.dir().join("work");
        let site = Site { lab, cuda, work };
        site.install();
        site
    }

    fn install(&self) {
        let hosts = self.work.join("gpus.json");
        let mut gpus = vec![json!({}); GPUS];
        gpus[0] = json!({ "shares": 4 });
        let host = json!({ "n1": { "gpus": gpus } });
        fs::write(&hosts, host.to_string()).unwrap();
        let library = built().join("libgpuos_pbs_hook.so").display().to_string();
        let preload = self.cuda.join("libgpuos_preload.so.0");
        let (hosts, preload) = (hosts.display().to_string(), preload.display().to_string());
        let words = [
            "pbs",
            "install",
            "--hosts",
            &hosts,
            "--library",
            &library,
            "--preload",
            &preload,
        ];
        let said = ran(self.lab.run(&gpuos(), &words));
        assert!(said.contains("gpuos_share_parts"), "{said}");
        let folder = self.lab.home("n1").join("mom_priv/hooks");
        self.until("mom has the hook", || {
            let parts = ["gpuos.HK", "gpuos.PY", "gpuos.CF"];
            parts.iter().all(|part| folder.join(part).is_file())
        });
        self.until("the host is free, with what is counted", || {
            let text = self.lab.run("pbsnodes", &["-v", "n1"]).unwrap_or_default();
            let counted = [
                "state = free",
                "ngpus = 7\n",
                "gpuos_share_parts = 4",
                "gpuos_share_fits = 4",
            ];
            counted.into_iter().all(|words| text.contains(words))
        });
        self.until("gpuosd knows the GPUs", || !self.lent()["gpus"].is_null());
    }

    fn until(&self, what: &str, there: impl Fn() -> bool) {
        let began = Instant::now();
        while !there() {
            start_waiting(&self.lab);
            if began.elapsed() > LIMIT {
                let jobs = self.lab.run("qstat", &["-x", "-f"]).unwrap_or_default();
                let log = self.lab.gpuosd_log("n1");
                panic!(
                    "not after {LIMIT:?}: {what}\n{}\n{jobs}\n{log}",
                    self.lent()
                );
            }
            sleep(Duration::from_millis(100));
        }
    }

    fn attribute(&self, job: &str, name: &str) -> String {
        self.lab.job(job, name).ok().flatten().unwrap_or_default()
    }

    fn state(&self, job: &str) -> String {
        self.attribute(job, "job_state")
    }

    /// Why a job is not taken.
    fn refused(&self, options: &[&str]) -> String {
        match self.lab.qsub(Some("user1"), options, "sleep 1\n") {
            Err(why) => why.to_string(),
            Ok(job) => panic!("{job} was taken"),
        }
    }

    /// What gpuosd has lent, as `gpuos mem show` tells it.
    fn lent(&self) -> Value {
        let words = ["mem", "show", "--json"];
        let said = self.lab.run_on("n1", None, &gpuos(), &words);
        let mut said: Value = serde_json::from_str(&said.unwrap_or_default()).unwrap_or_default();
        said["memory"].take()
    }

    /// Waits until gpuosd knows so many jobs: without control groups a process counts for the one job that its user has.
    fn knows(&self, count: usize) {
        self.until("gpuosd knows which jobs there are", || {
            let said = self.lab.run_on("n1", None, &gpuos(), &["health", "--json"]);
            let said: Value = serde_json::from_str(&said.unwrap_or_default()).unwrap_or_default();
            said["status"]["jobs"].as_array().map(Vec::len) == Some(count)
        });
    }

    /// Of the processes of a job, what is told of the first.
    fn of_job(&self, job: &str) -> Option<Value> {
        let told = self.lent();
        let mut own = told["programs"].as_array()?.iter();
        own.find(|one| one["job"] == job).cloned()
    }

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

    /// A job of the program of [`crate::memory_turns`], which goes on while its file is there.
    fn turned(&self, user: &str, name: &str, options: &[&str]) -> Turned<'_> {
        let stays = self.work.join(name);
        fs::write(&stays, "").expect("written");
        let test = std::env::current_exe().expect("this program");
        // The driver's GPUs are those that gpuosd sees, with memory for one of the two programs.
        let script = format!(
            "env LD_LIBRARY_PATH={} GPUOS_NVML_STATE={} GPUOS_CUDA=memory=128M,link=0 {CLIENT}={} CUDA_MPS_PIPE_DIRECTORY=/nonexistent \
             {} --exact memory_turns::client --nocapture >{}.out 2>&1\n",
            self.cuda.display(),
            self.lab.gpus_dir("n1").join("state").display(),
            stays.display(),
            test.display(),
            self.work.join("of-$PBS_JOBID").display(),
        );
        let id = ran(self.lab.qsub(Some(user), options, &script));
        Turned {
            site: self,
            id,
            stays,
        }
    }
}

struct Turned<'a> {
    site: &'a Site,
    id: String,
    stays: PathBuf,
}

impl Turned<'_> {
    fn said(&self) -> String {
        let file = self.site.work.join(format!("of-{}.out", self.id));
        fs::read_to_string(file).unwrap_or_default()
    }

    fn rounds(&self) -> usize {
        self.said().matches("round").count()
    }

    fn parks(&self) -> u64 {
        let one = self.site.of_job(&self.id);
        one.and_then(|one| one["parks"].as_u64()).unwrap_or(0)
    }

    /// Tells it to end, and reads that all of its bytes were right.
    fn ends_well(&self) {
        fs::remove_file(&self.stays).expect("removed");
        let ended = || self.site.state(&self.id) == "F";
        self.site.until("it ends", ended);
        let text = self.said();
        assert!(text.contains("all bytes were right"), "{text}");
        assert_eq!(self.site.attribute(&self.id, "Exit_status"), "0", "{text}");
    }
}

/// What qsub takes and what not, and what a user's own words come to.
fn requests(site: &Site) {
    let held = |options: &[&str]| {
        let options = [&["-h"], options].concat();
        ran(site.lab.qsub(Some("user1"), &options, "sleep 1\n"))
    };
    let job = held(&MOST);
    let select = |job: &str| site.attribute(job, "Resource_List.select");
    assert_eq!(select(&job), "1:ncpus=1:mem=8120mb:gpuos_share_parts=2");
    // A change has its place too, and takes none away.
    let alter = |words: &[&str]| {
        let words = [words, &[&job[..]]].concat();
        site.lab.run("qalter", &words)
    };
    ran(alter(&["-l", "select=1:ncpus=2:mem=50mb"]));
    assert_eq!(select(&job), "1:ncpus=2:mem=8070mb:gpuos_share_parts=2");
    ran(alter(&["-l", "gpuos_share=\"timeslice:3,mem=1000M\""]));
    assert_eq!(select(&job), "1:ncpus=2:mem=1050mb:gpuos_share_parts=3");
    for change in ["gpuos_share_parts=1", "gpuos_share=timeslice", "place=excl"] {
        let told = alter(&["-l", change]);
        assert!(told.is_err(), "{change}: {told:?}");
    }
    site.delete(&[&job]);
    let (chunk, share) = (MOST[1], MOST[3]);
    for (options, why) in [
        (
            &["-l", chunk, "-l", "gpuos_share=timeslice"][..],
            "write timeslice,mem=SIZE",
        ),
        (
            &["-l", chunk, "-l", "gpuos_share=mps:25%"],
            "write timeslice,mem=SIZE",
        ),
        (
            &["-l", "select=1:ncpus=1", "-l", share],
            "write mem=SIZE in -l select=",
        ),
        (
            &["-l", "select=2:ncpus=1:mem=1mb", "-l", share],
            "the job has 2 chunks",
        ),
        (
            &["-l", chunk, "-l", "gpuos_share=\"timeslice,mem=16024M\""],
            "write mem=16023M or less",
        ),
        (
            &["-l", "select=1:ngpus=1:mem=1mb", "-l", share],
            "does not go with ngpus",
        ),
        (
            &["-l", chunk, "-l", share, "-l", "gpuos_power=80%"],
            "does not go with -l gpuos_power",
        ),
        // Counts by hand, in a chunk and beside it.
        (
            &["-l", "select=1:ncpus=1:gpuos_share_parts=4"],
            "gpuos counts it",
        ),
        (&["-l", "gpuos_share_parts=4"], "gpuos counts it"),
    ] {
        let said = site.refused(options);
        assert!(said.contains(why), "{options:?}: {said}");
    }
}

/// A user who says for himself what he has: his program finds what his job was given.
fn forged(site: &Site) {
    let own = "LD_PRELOAD=/nonexistent.so,GPUOS_MEM_GRANT=99999999999999,GPUOS_MEM_HBM=9,CUDA_VISIBLE_DEVICES=7";
    let show = "echo \"[$LD_PRELOAD|$GPUOS_MEM_GRANT|$GPUOS_MEM_HBM|${GPUOS_MEM_SOCKET##*/}|$CUDA_VISIBLE_DEVICES]\"\n";
    let shown = |options: &[&str]| {
        let options = [&["-v", own], options].concat();
        let job = ran(site.lab.qsub(Some("user1"), &options, show));
        reaches(&site.lab, &job, "F", LIMIT);
        let said = site.lab.job_output(&job);
        let line = said.lines().find(|line| line.starts_with('['));
        line.unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    let library = site.cuda.join("libgpuos_preload.so.0");
    let wanted = format!(
        "[{}:/nonexistent.so|104857600|104857600|gpuosd.sock.memory|0]",
        library.display()
    );
    assert_eq!(shown(&LITTLE), wanted);
    assert!(
        site.lent()["programs"]
            .as_array()
            .is_some_and(Vec::is_empty)
    );
}

/// PBS suspends one: it keeps what it has and goes on where it was, and the other one has its turns.
fn suspended(site: &Site, [first, second]: [&Turned<'_>; 2]) {
    let signal = |name: &str| ran(site.lab.run("qsig", &["-s", name, &first.id]));
    signal("suspend");
    site.until("gpuosd sees it stopped", || {
        let one = site.of_job(&first.id);
        one.is_some_and(|one| one["stopped"] == true)
    });
    assert_eq!(site.state(&first.id), "S");
    let before = [first.rounds(), second.rounds()];
    signal("resume");
    for (job, before) in [first, second].into_iter().zip(before) {
        site.until("it goes on", || job.rounds() > before + 1);
    }
    assert_eq!(site.state(&first.id), "R");
}

#[test]
fn two_jobs_have_a_gpu_in_turns_and_a_third_waits() {
    let Some(prefix) = pbs("GPUs in turns in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_share");
    let site = Site::up(&prefix, "pbs-share");
    requests(&site);
    forged(&site);
    site.knows(0);

    // They do not fit beside each other, and both work.
    let jobs = [("user1", "first"), ("user2", "second")];
    let jobs = jobs.map(|(user, name)| site.turned(user, name, &MOST));
    for job in &jobs {
        site.until("it was parked three times", || {
            let said = job.said();
            assert!(!said.contains("panicked"), "{said}");
            job.parks() >= 3
        });
    }
    let lent = site.lent();
    assert_eq!(lent["gpus"][0]["in_turns"], true, "{lent}");
    suspended(&site, [&jobs[0], &jobs[1]]);
    // PBS has no third part of it for anybody, and the GPU is no whole one.
    let third = site.turned("user1", "third", &MOST);
    let whole = ran(site.lab.qsub(
        Some("user2"),
        &["-l", "select=1:ncpus=1:ngpus=8"],
        "sleep 1\n",
    ));
    let waits = |job: &str| site.attribute(job, "comment");
    for job in [&third.id, &whole] {
        site.until("pbs_sched has looked at it", || !waits(job).is_empty());
    }
    assert_eq!([site.state(&third.id), site.state(&whole)], ["Q", "Q"]);
    assert!(
        waits(&third.id).contains("gpuos_share_parts"),
        "{}",
        waits(&third.id)
    );
    let why = site
        .lab
        .run_on("head", None, &gpuos(), &["why", "--pbs", &jobs[0].id]);
    let why = ran(why);
    assert!(
        why.contains("parts of a GPU") && why.contains("n1"),
        "{why}"
    );

    // gpuosd is killed: both go on, and what they have is known to the next one.
    let before = [jobs[0].rounds(), jobs[1].rounds()];
    ran(site.lab.kill("n1", GPUOSD, 9));
    ran(site.lab.start("n1", GPUOSD));
    for (job, before) in jobs.iter().zip(before) {
        site.until("it goes on", || job.rounds() > before + 1);
        site.until("it is known", || site.of_job(&job.id).is_some());
    }

    // One ends while gpuosd is away: nothing of it is left, and the third has its place.
    ran(site.lab.run("qhold", &[&third.id]));
    ran(site.lab.kill("n1", GPUOSD, 9));
    site.delete(&[&jobs[0].id]);
    ran(site.lab.start("n1", GPUOSD));
    site.knows(1);
    ran(site.lab.run("qrls", &[&third.id]));
    site.until("the third works", || {
        let said = third.said();
        assert!(!said.contains("panicked"), "{said}");
        third.rounds() > 0
    });
    site.until("the first is forgotten", || {
        site.of_job(&jobs[0].id).is_none()
    });
    assert_eq!(site.state(&whole), "Q");

    third.ends_well();
    jobs[1].ends_well();
    site.delete(&[&whole]);
    site.until("nothing is lent any more", || {
        let lent = site.lent();
        lent["host"]["promised"] == 0 && lent["programs"].as_array().is_some_and(Vec::is_empty)
    });
    site.until("the host is as before", || {
        let text = site.lab.run("pbsnodes", &["-v", "n1"]).unwrap_or_default();
        text.contains("gpuos_share_fits = 4")
            && !text.contains("resources_assigned.gpuos_share_parts = 2")
    });
}
