//! `gpuos_mem` on a PBS with simulated GPUs and a simulated driver: a program has more memory
//! than its GPU, PBS counts what lies in host memory, and what gpuosd has lent ends with the job.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{GPUOSD, PbsLab};
use gpuos_tests::plugins::{built, daemons};
use gpuos_tests::{costs, pbs};
use serde_json::{Value, json};

use crate::memory_grants::CLIENT;
use crate::pbs_site::{cuda, gpuos, reaches, start_waiting};

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(240);
const GPUS: usize = 8;
const HOSTS: [&str; 2] = ["n1", "n2"];

/// GPUs of 64 MiB, of which programs have all.
const GPUOS: &str = "[memory]\noversubscribe = true\nreserve-mib = 0\n\n[[node-type]]\nname = \"small\"\nbase = \"dgx-h100\"\n\
                     gpu-memory-mib = 64\n\n[[nodes]]\nmatch = \"n[1-2]\"\ntype = \"small\"\n";

/// What a job asks for whose program needs three times its GPU: 192 MiB of it have no room there.
const LARGE: [&str; 4] = [
    "-l",
    "select=1:ncpus=1:ngpus=1:mem=100mb",
    "-l",
    "gpuos_mem=256M",
];
/// In bytes.
const LENT_OF_HOST: u64 = 192 << 20;

fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

/// A PBS whose two nodes have eight GPUs each.
struct Site {
    lab: PbsLab,
    cuda: PathBuf,
    work: PathBuf,
}

impl Site {
    fn up(prefix: &Path, name: &str) -> Site {
        let spec = LabSpec {
            nodes: 2.into(),
            node_type: "dgx-h100".into(),
            pbs: Some(prefix.to_path_buf()),
            simulated_gpus: Some(daemons().to_path_buf()),
            gpuos_toml: Some(GPUOS.into()),
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
        let host = json!({ "gpus": vec![json!({}); GPUS] });
        fs::write(&hosts, json!({ "n1": host, "n2": host }).to_string()).unwrap();
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
        ran(self.lab.run(&gpuos(), &words));
        for host in HOSTS {
            let folder = self.lab.home(host).join("mom_priv/hooks");
            self.until("mom has the hook", || {
                let parts = ["gpuos.HK", "gpuos.PY", "gpuos.CF"];
                parts.iter().all(|part| folder.join(part).is_file())
            });
        }
        self.until("all hosts are free, and show it", || self.is_free());
        self.until("gpuosd knows the GPUs", || !self.lent()["gpus"].is_null());
    }

    fn is_free(&self) -> bool {
        let text = self.lab.run("pbsnodes", &["-av"]).unwrap_or_default();
        let of_both = |words: &str| text.matches(words).count() == 2;
        of_both("state = free") && of_both("free=0-7;")
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

    /// What gpuosd has lent on the first host, as `gpuos mem show` tells it.
    fn lent(&self) -> Value {
        let words = ["mem", "show", "--json"];
        let said = self.lab.run_on("n1", None, &gpuos(), &words);
        let mut said: Value = serde_json::from_str(&said.unwrap_or_default()).unwrap_or_default();
        said["memory"].take()
    }

    /// How much host memory a job's programs have.
    fn of_host(&self, job: &str) -> u64 {
        let told = self.lent();
        let programs = told["programs"].as_array().cloned().unwrap_or_default();
        let own = programs.iter().filter(|one| one["job"] == job);
        let leases = own.filter_map(|one| one["leases"].as_array());
        let each = leases.flatten().filter_map(|lease| lease["host"].as_u64());
        each.sum()
    }

    fn nothing_is_lent(&self) {
        self.until("nothing is lent any more", || {
            let lent = self.lent();
            lent["host"]["promised"] == 0 && lent["programs"].as_array().is_some_and(Vec::is_empty)
        });
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

    /// A job on the first host of the program of [`crate::memory_grants`], which stays while its file is there.
    fn larger(&self, name: &str, options: &[&str]) -> (String, PathBuf) {
        let stays = self.work.join(name);
        fs::write(&stays, "").expect("written");
        let test = std::env::current_exe().expect("this program");
        // The driver's GPUs are those that gpuosd sees.
        let script = format!(
            "env LD_LIBRARY_PATH={} GPUOS_NVML_STATE={} GPUOS_CUDA=memory=64M {CLIENT}=1 GPUOS_GRANTS_STAYS={} \
             CUDA_MPS_PIPE_DIRECTORY=/nonexistent {} --exact memory_grants::client --nocapture >{}.out 2>&1\n",
            self.cuda.display(),
            self.lab.gpus_dir("n1").join("state").display(),
            stays.display(),
            test.display(),
            stays.display(),
        );
        (ran(self.lab.qsub(Some("user1"), options, &script)), stays)
    }

    /// What such a job has printed.
    fn said(&self, stays: &Path) -> String {
        fs::read_to_string(format!("{}.out", stays.display())).unwrap_or_default()
    }

    /// Waits until a job has computed, with what it needs of host memory lent.
    fn works(&self, job: &str, stays: &Path) {
        self.until("it has memory beyond its GPU", || {
            let said = self.said(stays);
            assert!(!said.contains("panicked"), "{said}");
            said.contains("all bytes are right") && self.of_host(job) == LENT_OF_HOST
        });
    }
}

/// What qsub takes and what not, and what a user's own words come to.
fn requests(site: &Site) {
    let select = |job: &str| site.attribute(job, "Resource_List.select");
    let held = |options: &[&str]| {
        let options = [&["-h"], options].concat();
        ran(site.lab.qsub(Some("user1"), &options, "sleep 1\n"))
    };
    let job = held(&LARGE);
    let counted = "1:ncpus=1:ngpus=1:mem=292mb:gpuos_mem_beyond=192mb";
    assert_eq!(select(&job), counted);
    let alter = |words: &[&str]| {
        let words = [words, &[&job[..]]].concat();
        site.lab.run("qalter", &words)
    };
    ran(alter(&["-l", "gpuos_mem=\"128M,policy=arc\""]));
    assert_eq!(
        select(&job),
        "1:ncpus=1:ngpus=1:mem=164mb:gpuos_mem_beyond=64mb"
    );
    ran(alter(&["-l", "gpuos_mem=256M"]));
    // A copy of what qstat shows, and what a user writes anew: neither is counted twice.
    ran(alter(&["-l", &format!("select={counted}:mpiprocs=2")]));
    assert_eq!(
        select(&job),
        "1:ncpus=1:ngpus=1:mem=292mb:mpiprocs=2:gpuos_mem_beyond=192mb"
    );
    ran(alter(&["-l", "select=2:ncpus=1:ngpus=2:mem=50mb"]));
    assert_eq!(
        select(&job),
        "2:ncpus=1:ngpus=2:mem=434mb:gpuos_mem_beyond=384mb"
    );
    // Whatever he says was added.
    let forged = counted.replace("beyond=192mb", "beyond=291mb");
    ran(alter(&["-l", &format!("select={forged}")]));
    assert_eq!(
        select(&job),
        "1:ncpus=1:ngpus=1:mem=193mb:gpuos_mem_beyond=192mb"
    );
    for change in [
        "gpuos_mem_beyond=1kb",
        "gpuos_mem=257M",
        "gpuos_mps=on",
        "select=1:ngpus=1",
    ] {
        let told = alter(&["-l", change]);
        assert!(told.is_err(), "{change}: {told:?}");
    }
    ran(alter(&["-l", "gpuos_mem=off"]));
    assert_eq!(select(&job), "1:ncpus=1:ngpus=1:mem=1mb");
    site.delete(&[&job]);
    let (chunk, mem) = (LARGE[1], LARGE[3]);
    for (options, why) in [
        (
            &["-l", "select=1:ngpus=1", "-l", mem][..],
            "write mem=SIZE in each chunk with GPUs",
        ),
        (
            &["-l", chunk, "-l", "gpuos_mem=257M"],
            "write at most 256M here",
        ),
        (
            &["-l", chunk, "-l", "gpuos_mem=\"65M,tiers=hbm\""],
            "write at most 64M here",
        ),
        (
            &["-l", chunk, "-l", "gpuos_mem=1"],
            "the unit M, G or T is missing",
        ),
        (
            &["-l", chunk, "-l", mem, "-l", "gpuos_mps=on"],
            "does not go with -l gpuos_mps",
        ),
        (
            &["-l", "select=1:ncpus=1:mem=1mb", "-l", mem],
            "the job asks for no GPU",
        ),
        // Texts that would be more than a value.
        (
            &["-l", chunk, "-l", "gpuos_mem=\"256M\nmem=1kb\""],
            "gpuos_mem=256M",
        ),
        (
            &["-l", chunk, "-l", "gpuos_mem=\"256M'+1:ngpus=8\""],
            "gpuos_mem=256M",
        ),
        // Counts by hand, in a chunk and beside it.
        (
            &["-l", &format!("select={counted}")],
            "gpuos counts it by what a job asks for",
        ),
        (&["-l", "gpuos_mem_beyond=1kb"], "gpuos counts it"),
    ] {
        let said = site.refused(options);
        assert!(said.contains(why), "{options:?}: {said}");
    }
    // A default of the queue comes after the hook.
    ran(site.lab.run(
        "qmgr",
        &[
            "-c",
            "set queue workq resources_default.gpuos_mem = \"256M\"",
        ],
    ));
    let job = ran(site.lab.qsub(Some("user1"), &["-l", chunk], "sleep 1\n"));
    let comment = || site.attribute(&job, "comment");
    site.until("its start is refused", || {
        comment().contains("not counted as it is now")
    });
    assert_eq!(site.state(&job), "Q");
    ran(site.lab.run(
        "qmgr",
        &["-c", "unset queue workq resources_default.gpuos_mem"],
    ));
    site.delete(&[&job]);
}

/// What programs find on both hosts of a job, whatever its user has in these variables; and in a job without it.
fn variables(site: &Site) {
    let own = "LD_PRELOAD=/nonexistent.so,GPUOS_MEM_GRANT=99999999999999,GPUOS_MEM_HBM=9,GPUOS_MEM_SOCKET=/tmp/x";
    let show =
        "[$LD_PRELOAD|$GPUOS_MEM_GRANT|$GPUOS_MEM_HBM|$GPUOS_MEM_POLICY|${GPUOS_MEM_SOCKET##*/}]";
    let two = [
        "-v",
        own,
        "-l",
        "select=2:ncpus=1:ngpus=1:mem=50mb",
        "-l",
        "place=scatter",
        "-l",
        "gpuos_mem=\"256M,policy=lru\"",
    ];
    let script = format!("pbsdsh -- sh -c 'echo \"$(hostname) {show}\"'\n");
    let job = ran(site.lab.qsub(Some("user1"), &two, &script));
    reaches(&site.lab, &job, "F", LIMIT);
    let said = site.lab.job_output(&job);
    let library = site.cuda.join("libgpuos_preload.so.0");
    for host in HOSTS {
        let wanted = format!(
            "{host} [{}:/nonexistent.so|268435456|268435456|lru|gpuosd.sock.memory]",
            library.display()
        );
        assert!(
            said.lines().any(|line| line == wanted),
            "{wanted}\n{said}\n{}",
            site.lab.gpuosd_log(host)
        );
    }
    let without = ["-l", "select=1:ncpus=1:ngpus=1:mem=50mb"];
    let script = format!("echo \"{show}\"\n");
    let job = ran(site.lab.qsub(Some("user1"), &without, &script));
    reaches(&site.lab, &job, "F", LIMIT);
    let said = site.lab.job_output(&job);
    assert!(said.contains("[||||]"), "{said}");
}

#[test]
fn a_program_has_more_memory_than_its_gpu_and_what_is_lent_ends_with_the_job() {
    let Some(prefix) = pbs("memory beyond GPUs in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_memory");
    let site = Site::up(&prefix, "pbs-memory");
    requests(&site);
    variables(&site);

    // Without the option it has what the GPU has, which is too little.
    let (job, _) = site.larger(
        "without",
        &["-l", "select=1:ncpus=1:ngpus=1:mem=300mb:host=n1"],
    );
    reaches(&site.lab, &job, "F", LIMIT);
    assert_ne!(site.attribute(&job, "Exit_status"), "0");

    // gpuosd is killed under it: it goes on, and what it has is known to the next one.
    let large = [
        "-l",
        "select=1:ncpus=1:ngpus=1:mem=100mb:host=n1",
        "-l",
        LARGE[3],
    ];
    let (job, stays) = site.larger("first", &large);
    site.works(&job, &stays);
    ran(site.lab.kill("n1", GPUOSD, 9));
    ran(site.lab.start("n1", GPUOSD));
    site.works(&job, &stays);
    fs::remove_file(&stays).expect("removed");
    reaches(&site.lab, &job, "F", LIMIT);
    let said = site.said(&stays);
    assert_eq!(site.attribute(&job, "Exit_status"), "0", "{said}");
    assert!(said.contains("all bytes are right, of 268435456"), "{said}");
    site.nothing_is_lent();

    // One is deleted, and one while gpuosd is away: nothing of either is left.
    let (job, stays) = site.larger("second", &large);
    site.works(&job, &stays);
    site.delete(&[&job]);
    site.nothing_is_lent();
    let (job, stays) = site.larger("third", &large);
    site.works(&job, &stays);
    ran(site.lab.kill("n1", GPUOSD, 9));
    site.delete(&[&job]);
    ran(site.lab.start("n1", GPUOSD));
    site.nothing_is_lent();
    site.until("all hosts are free, and show it", || site.is_free());
}
