//! Jobs of slurmrestd, in real Slurm clusters: the `GPUOS_*` variables of their environment ask, as sbatch's defaults do.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use gpuos_lab::Suite;
use gpuos_model::gpuset::GpuSet;
use gpuos_tests::plugins::{daemons, programs};
use gpuos_tests::{Cluster, Setup, per_suite};
use serde_json::{Value, json};

per_suite!(
    jobs_of_slurmrestd_ask_by_variables,
    jobs_of_slurmrestd_share_save_and_are_explained
);

/// slurmrestd is run neither as root nor as SlurmUser, and takes nobody's word but its own user's.
const USER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// Sends standard input to a socket, and shows the answer. Perl's is in each Debian suite.
const CLIENT: &str = "my $s = IO::Socket::UNIX->new(Peer => shift) or die qq(no socket: $!\\n); local $/; \
    print $s scalar <STDIN>; $s->flush; print scalar <$s>;";

/// A slurmrestd, and the folder of its user.
struct Rest<'a> {
    cluster: &'a Cluster,
    daemon: Child,
    folder: PathBuf,
    /// `v0.0.38`, the newest that it has.
    version: String,
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// A job as a request describes it.
struct Job<'a> {
    name: &'a str,
    gres: Option<&'a str>,
    variables: &'a [&'a str],
    held: bool,
}

impl<'a> Rest<'a> {
    /// Starts one. `None`, and that is said, where the release has none.
    fn start(cluster: &'a Cluster) -> Option<Rest<'a>> {
        if !Path::new(
            &cluster
                .run("sh", &["-c", "command -v slurmrestd || echo none"])
                .trim(),
        )
        .is_absolute()
        {
            let what = format!("jobs of slurmrestd on Slurm {}", cluster.lab.version());
            gpuos_tests::skip(&what, "no slurmrestd is installed there");
            return None;
        }
        let folder = cluster.lab.dir().join("rest");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).expect("everybody's");
        // Without a slurmdbd it does not start with all that it has.
        let api = match cluster.is_before([23, 11, 0]) {
            true => "openapi/v0.0.38",
            false => "openapi/slurmctld",
        };
        let log = std::fs::File::create(folder.join("log")).expect("a log");
        let socket = format!("unix:{}", folder.join("socket").display());
        let daemon = cluster
            .lab
            .command("setpriv")
            .expect("the lab is up")
            .args(USER)
            .args(["slurmrestd", "-s", api, "-a", "rest_auth/local", &socket])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("slurmrestd starts");
        let mut rest = Rest {
            cluster,
            daemon,
            folder,
            version: String::new(),
        };
        cluster.until("slurmrestd listens", || {
            rest.folder.join("socket").exists().then_some(())
        });
        let has = |number: &u32| {
            let path = format!("/slurm/v0.0.{number}/jobs/");
            rest.ask("GET", &path, "").0 == 200
        };
        let newest = (36..60).rev().find(has).expect("an API");
        rest.version = format!("v0.0.{newest}");
        eprintln!("slurmrestd of {}: {}", cluster.lab.version(), rest.version);
        Some(rest)
    }

    /// Status and body of an answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u32, String) {
        use std::io::Write;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let socket = self.folder.join("socket").display().to_string();
        let mut client = self
            .cluster
            .lab
            .command("setpriv")
            .expect("the lab is up")
            .args(USER)
            .args(["perl", "-MIO::Socket::UNIX", "-e", CLIENT, &socket])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("perl starts");
        let mut to = client.stdin.take().expect("a pipe");
        to.write_all(request.as_bytes()).expect("written");
        drop(to);
        let out = client.wait_with_output().expect("an answer");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let status = text
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        (
            status.unwrap_or_else(|| panic!("no HTTP: {text}")),
            body.unwrap_or_default(),
        )
    }

    fn is_old(&self) -> bool {
        self.version == "v0.0.38"
    }

    fn described(&self, job: &Job<'_>) -> Value {
        let folder = self.folder.display();
        let all: Vec<&str> = ["PATH=/usr/bin:/bin"]
            .iter()
            .chain(job.variables)
            .copied()
            .collect();
        let environment = match self.is_old() {
            true => all
                .iter()
                .filter_map(|one| one.split_once('='))
                .map(|(name, value)| (name.to_owned(), json!(value)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            false => json!(all),
        };
        let mut one = json!({
            "name": job.name,
            "current_working_directory": self.folder,
            "standard_output": format!("{folder}/%j.out"),
            "tasks": 1,
            "hold": job.held,
            "environment": environment,
        });
        if let Some(gres) = job.gres {
            one[if self.is_old() {
                "gres"
            } else {
                "tres_per_node"
            }] = json!(match self.is_old() {
                true => gres.to_owned(),
                false => format!("gres/{gres}"),
            });
        }
        one
    }

    /// Submits a job, or the components of one; the answer.
    fn submit(&self, jobs: &[Job<'_>], script: &str) -> (u32, Value) {
        let script = format!("#!/bin/sh\n{script}\n");
        let mut all: Vec<Value> = jobs.iter().map(|job| self.described(job)).collect();
        let body = match all.len() {
            1 => json!({"script": script, "job": all.remove(0)}),
            _ => json!({"script": script, "jobs": all}),
        };
        let path = format!("/slurm/{}/job/submit", self.version);
        let (status, text) = self.ask("POST", &path, &body.to_string());
        // What closes the connection may follow behind it.
        let mut values = serde_json::Deserializer::from_str(&text).into_iter();
        let answer = match values.next() {
            Some(Ok(answer)) => answer,
            other => panic!("{other:?}: {text}"),
        };
        (status, answer)
    }
}

/// The number of a job that was taken.
fn number((status, answer): &(u32, Value)) -> u32 {
    let number = answer["job_id"]
        .as_u64()
        .filter(|number| *number > 0 && *status == 200);
    number.unwrap_or_else(|| panic!("{status}: {answer}")) as u32
}

/// What a job found of gpuos in its environment, and its step.
fn found(rest: &Rest<'_>, job: u32) -> Vec<String> {
    rest.cluster.wait(job, &["COMPLETED"]);
    let text = std::fs::read_to_string(rest.folder.join(format!("{job}.out"))).expect("its output");
    // The lab has variables of its own, which sbatch hands on.
    let names = [
        "GPUOS_GPUS=",
        "GPUOS_LEVEL=",
        "GPUOS_LINKS=",
        "GPUOS_JOB_",
        "_SLURM_SPANK_OPTION",
        "[",
    ];
    let about = |line: &&str| names.iter().any(|name| line.starts_with(name));
    text.lines().filter(about).map(str::to_owned).collect()
}

/// A job that asks by variables.
fn job<'a>(variables: &'a [&'a str], gres: Option<&'a str>, held: bool) -> Job<'a> {
    Job {
        name: "asks",
        gres,
        variables,
        held,
    }
}

const SHOW: &str = "env | sort; echo [step]; srun -n1 env | sort";

/// The same job by sbatch, with the same variables.
fn by_sbatch(rest: &Rest<'_>, job: &Job<'_>, script: &str) -> u32 {
    let script = rest.cluster.script("same", script);
    let folder = rest.folder.display();
    let [dir, out] = [
        format!("--chdir={folder}"),
        format!("--output={folder}/%j.out"),
    ];
    let mut all = [&USER[..], &["env"], job.variables].concat();
    all.extend(["sbatch", "--parsable", "-n1", "-J", job.name, &dir, &out]);
    let gres = job.gres.map(|gres| format!("--gres={gres}"));
    all.extend(gres.as_deref());
    all.extend(job.held.then_some("-H"));
    all.push(&script);
    rest.cluster
        .run("setpriv", &all)
        .trim()
        .parse()
        .expect("a number")
}

/// What Slurm and gpuos say of a job that waits, without its number.
fn said(rest: &Rest<'_>, job: u32) -> (Vec<String>, String) {
    let show = rest.cluster.show(job);
    let about = ["TresPerNode=", "TresPerJob=", "MinMemory", "NumNodes="];
    let fields = show
        .split_whitespace()
        .filter(|field| about.iter().any(|name| field.starts_with(name)));
    let fields = fields.map(str::to_owned).collect();
    let out = rest.cluster.output(
        "squeue",
        &["-h", "-o", "%b %r %C %m", "-j", &job.to_string()],
    );
    (
        fields,
        String::from_utf8_lossy(&out.expect("squeue").stdout).into_owned(),
    )
}

fn jobs_of_slurmrestd_ask_by_variables(suite: &Suite) {
    let mut setup = Setup::simulated("rest", suite, 1);
    setup.spec.job_submit = true;
    setup.spec.mig = GpuSet(0b1100_0000);
    setup.spec.gpuos_toml = None;
    let Some(cluster) = setup.steered() else {
        return;
    };
    let Some(rest) = Rest::start(&cluster) else {
        return;
    };
    // What runs finds the same as with sbatch, and without variables too.
    for variables in [
        &["GPUOS_WATCH=5", "GPUOS_TOPOLOGY=node", "GPUOS_POWER=300W"][..],
        &[],
    ] {
        let asks = || job(variables, Some("gpu:1"), false);
        let own = found(&rest, number(&rest.submit(&[asks()], SHOW)));
        let other = found(&rest, by_sbatch(&rest, &asks(), SHOW));
        assert_eq!(own, other, "{variables:?}");
        let limits = own
            .iter()
            .any(|line| line.starts_with("GPUOS_JOB_LIMITS=power=300W watch=5"));
        assert_eq!(limits, !variables.is_empty(), "{own:?}");
    }
    // What the controller makes of it.
    for (variables, gres) in [
        (&["GPUOS_MIG=1g.10gb"][..], None),
        (&["GPUOS_TOPOLOGY=node"], Some("gpu:2")),
        (&[], Some("gpu:1")),
    ] {
        let answer = rest.submit(&[job(variables, gres, true)], "true");
        let own = number(&answer);
        let other = by_sbatch(&rest, &job(variables, gres, true), "true");
        assert_eq!(said(&rest, own), said(&rest, other), "{variables:?}");
        let note = answer
            .1
            .to_string()
            .contains("gpuos: GPUOS_MIG=1g.10gb (environment): ");
        assert_eq!(note, gres.is_none(), "{answer:?}");
        cluster.cancel(&[own, other]);
    }
    // Refusals: slurmrestd writes the sentence to its log, and answers with Slurm's number for it.
    for (variable, sentence) in [
        (
            "GPUOS_WATCH=x",
            "GPUOS_WATCH=x (environment): 'x' is not understood",
        ),
        (
            "GPUOS_TOPOLOGY=rack",
            "GPUOS_TOPOLOGY=rack (environment): this cluster has no level",
        ),
        (
            "GPUOS_CHECKPOINT=10m",
            "GPUOS_CHECKPOINT=10m (environment): this site makes no checkpoints",
        ),
    ] {
        let (status, answer) = rest.submit(&[job(&[variable], Some("gpu:1"), true)], "true");
        let log = std::fs::read_to_string(rest.folder.join("log")).expect("its log");
        let said = log.contains(sentence) || answer.to_string().contains(sentence);
        assert!(status != 200 && said, "{variable}: {status} {answer} {log}");
    }
    // Each component of a heterogeneous job asks for itself.
    let two = [
        job(&["GPUOS_TOPOLOGY=node"][..], Some("gpu:1"), true),
        job(&["GPUOS_MIG=1g.10gb"][..], None, true),
    ];
    let id = number(&rest.submit(&two, "true"));
    let show = cluster.run("scontrol", &["show", "job", &id.to_string()]);
    assert!(
        show.contains("gpu:1") && show.contains("gpuos:h100-80gb:1"),
        "{show}"
    );
    cluster.run("scancel", &[&id.to_string()]);
    drop(rest);
    cluster.drained();
}

/// What `gpuos why` says of a job's state and request, without its number; estimates and the last look change while a job waits.
fn why(cluster: &Cluster, job: u32) -> String {
    let gpuos = programs().join("gpuos");
    let said = cluster.run(gpuos.to_str().expect("UTF-8"), &["why", &job.to_string()]);
    let number = job.to_string();
    let words = said
        .split_inclusive(' ')
        .map(|word| match word.trim_end() == number {
            true => "N ",
            false => word,
        });
    let said: String = words.collect();
    let about = |line: &&str| ["Job N ", "It asks "].iter().any(|it| line.starts_with(it));
    said.lines().filter(about).collect::<Vec<_>>().join("\n")
}

/// The files of a program that counts and saves, where slurmrestd's user can read them; how it is called.
fn counter(rest: &Rest<'_>) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (folder, name) in [
        ("share", "gpuos-checkpoint.sh"),
        ("examples/checkpoint", "counter.sh"),
    ] {
        let to = rest.folder.join(name);
        std::fs::copy(root.join(folder).join(name), &to).expect("a copy");
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o644)).expect("everybody's");
    }
    let folder = rest.folder.display();
    format!("srun -n1 env GPUOS_HELPERS={folder} sh {folder}/counter.sh 100000 0.02")
}

fn jobs_of_slurmrestd_share_save_and_are_explained(suite: &Suite) {
    let mut setup = Setup::new("rest-saves", suite);
    setup.spec.nodes = 1.into();
    setup.spec.job_submit = true;
    setup.spec.shards = 4;
    setup.spec.movers = Some(daemons().to_path_buf());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let Some(rest) = Rest::start(&cluster) else {
        return;
    };
    // A part of a GPU is the same that sbatch gets, and so is what is said of a job that waits for GPUs.
    let blocker = cluster.start(&["-N1", "--exclusive"]);
    for (variables, gres) in [
        (&["GPUOS_SHARE=timeslice:2"][..], None),
        (&["GPUOS_CHECKPOINT=10m"], Some("gpu:1")),
        (&["GPUOS_TOPOLOGY=node:required"], Some("gpu:2")),
        (&[], Some("gpu:1")),
    ] {
        let waits = |id: u32| {
            cluster.until("slurmctld says why it waits", || {
                cluster.show(id).contains("Reason=Resources").then_some(())
            });
            // Slurm's word and gpuos's reason take turns in squeue, and what there is room for changes while a job waits.
            let asks = cluster.until("why says that it waits", || {
                let told = why(&cluster, id);
                let asks = told.lines().find(|line| line.starts_with("It asks "));
                let asks = asks.unwrap_or_default().to_owned();
                told.starts_with("Job N waits").then_some(asks)
            });
            let seen = (said(&rest, id).0, asks);
            let has_shards = cluster.show(id).contains("shard:2");
            assert_eq!(has_shards, gres.is_none(), "{variables:?}");
            cluster.cancel(&[id]);
            seen
        };
        let job = job(variables, gres, false);
        let own = waits(number(&rest.submit(std::slice::from_ref(&job), "true")));
        assert_eq!(own, waits(by_sbatch(&rest, &job, "true")), "{variables:?}");
    }
    cluster.cancel(&[blocker]);
    // A checkpoint is taken, and the next run goes on from it.
    let save = job(&["GPUOS_CHECKPOINT=1s"], Some("gpu:1"), false);
    let id = number(&rest.submit(&[save], &counter(&rest)));
    let output = || {
        let file = rest.folder.join(format!("{id}.out"));
        std::fs::read_to_string(file).unwrap_or_default()
    };
    cluster.until("it has saved twice", || {
        output().contains("saved 2 at ").then_some(())
    });
    let told = why(&cluster, id);
    assert!(told.starts_with("Job N runs"), "{told}");
    let name = format!("JobId={id}");
    cluster.run("scontrol", &["requeue", &id.to_string()]);
    cluster.wait(id, &["PENDING"]);
    cluster.update(&[&name, "StartTime=now+2"]);
    cluster.until("it goes on", || {
        output().contains("restored checkpoint ").then_some(())
    });
    cluster.run("scancel", &[&id.to_string()]);
    drop(rest);
    cluster.drained();
}
