//! A node in a folder: a simulated NVIDIA library, Slurm's commands as a script, and a real gpuosd.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_core::health::Verb;
use gpuos_core::limits::Asked;
use gpuos_core::step::StepId;
use gpuos_core::wire::{Reason, Reply, Request, Status};
use gpuos_host::socket::{Client, ClientError, NAME};
use nvidia_ml::fault::{Fault, inject, repair, reset};
use nvidia_ml::model::kind_named;
use nvidia_ml::state::{Gpu, NO_INSTANCE, Options, Process, Shared, node};

use crate::program::{JOBS, program};

/// Longest wait for anything: a busy machine is no fault.
pub const LIMIT: Duration = Duration::from_secs(240);

/// slurmctld as far as gpuosd sees it: node n1 with an Extra, a state and a reason in files. What the test reads meanwhile is written
/// beside it first.
const SLURM: &str = r#"#!/bin/sh
cd "$(dirname "$0")/slurm" || exit 1
echo "$(basename "$0") $*" >>log
[ ! -e slow ] || sleep "$(cat slow)"
if [ -e away ]; then
    echo "slurm_load_node error: Unable to contact slurm controller (connect failure)" >&2
    exit 1
fi
case "$(basename "$0") $*" in
"scontrol show config") [ ! -e config ] || cat config ;;
"scontrol show node n1")
    printf 'NodeName=n1 Arch=x86_64\n   Gres=gpu:h100:8(S:0-1)\n   State=%s ThreadsPerCore=1\n' "$(cat state)"
    printf '   Extra=%s\n   Reason=%s [root@2026-11-20T21:40:00]\n' "$(cat extra)" "$(cat reason)" ;;
"scontrol update NodeName=n1 Extra="*) shift 2; printf '%s' "${1#Extra=}" >new.$$; mv new.$$ extra ;;
"scontrol update NodeName=n1 State=DRAIN Reason="*)
    shift 3; printf '%s' "${1#Reason=}" >new.$$; mv new.$$ reason; echo IDLE+DRAIN >state ;;
"scontrol update NodeName=n1 State=RESUME") : >reason; echo IDLE >state ;;
"squeue -a -w "*) cat /dev/null jobs/* 2>/dev/null | awk -v rows="$SQUEUE_FORMAT2" -f ../jobs.awk ;;
"squeue "*)
    if [ -e "jobs/$5" ]; then awk -v rows="$SQUEUE_FORMAT2" -f ../jobs.awk "jobs/$5"; else
        echo "slurm_load_jobs error: Invalid job id specified" >&2
        exit 1
    fi ;;
"scontrol -d show job "*)
    if [ -e "jobs/$4" ]; then awk -f ../jobs.awk "jobs/$4"; else
        echo "slurm_load_jobs error: Invalid job id specified" >&2
        exit 1
    fi ;;
"scontrol requeue incomplete "*)
    if grep -q JobState=RUNNING "jobs/$3"; then
        runs=$(sed -n 's/.*Restarts=\([0-9]*\).*/\1/p' "jobs/$3")
        sed -i "s/JobState=RUNNING/JobState=PENDING/; s/ NodeList=n1/ NodeList=(null)/; s/Restarts=$runs/Restarts=$((runs + 1))/" "jobs/$3"
    fi ;;
"scontrol requeuehold incomplete "*)
    if grep -q JobState=RUNNING "jobs/$3"; then
        runs=$(sed -n 's/.*Restarts=\([0-9]*\).*/\1/p' "jobs/$3")
        sed -i "s/JobState=RUNNING/JobState=PENDING/; s/ NodeList=n1/ NodeList=(null)/; s/Restarts=$runs/Restarts=$((runs + 1))/" "jobs/$3"
        echo '   Priority=0 Nice=0' >>"jobs/$3"
    fi ;;
"scontrol release "*) sed -i 's/ Priority=0 / Priority=7 /' "jobs/$2" ;;
"scontrol update JobId="*" AdminComment="*)
    id=${2#JobId=}
    grep -v '^   AdminComment=' "jobs/$id" >new.$$
    printf '   %s\n' "$3" >>new.$$
    mv new.$$ "jobs/$id" ;;
"scontrol update JobId="*) ;;
"scontrol notify "*) ;;
"scancel "*) rm -f "jobs/${1%%.*}" ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
"#;

/// Notes which GPU it is told to reset and which GPUs jobs have then, and waits until that GPU is mended.
const RESET: &str = r#"#!/bin/sh
cd "$(dirname "$0")/slurm"
held=$(grep -l JobState=RUNNING jobs/* | xargs -r grep -ho 'IDX:[0-9]*' | tr '\n' ' ')
echo "reset $1: $held" >>resets
: >"resets.$1"
while [ -e "resets.$1" ]; do sleep 0.05; done
"#;

/// The node.
pub struct Site {
    name: &'static str,
    folder: tempfile::TempDir,
    gpus: Shared,
    /// Where the log of the newest daemon begins.
    begun: AtomicUsize,
}

impl Site {
    /// Eight idle H100.
    pub fn new() -> Site {
        Site::of("n1")
    }

    /// The same, of another name.
    pub fn of(name: &'static str) -> Site {
        Site::made_of(name, "dgx-h100")
    }

    /// The same, with GPUs of a kind of node.
    pub fn made_of(name: &'static str, kind: &str) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("slurm/jobs")).unwrap();
        fs::write(path("jobs.awk"), JOBS).unwrap();
        for name in ["scontrol", "squeue", "scancel"] {
            program(&path(name), SLURM);
        }
        for (name, text) in [
            ("state", "IDLE\n"),
            ("extra", "rack=7"),
            ("reason", ""),
            ("log", ""),
        ] {
            fs::write(path("slurm").join(name), text).unwrap();
        }
        fs::write(path("kmsg"), "").unwrap();
        let reset = "#!/bin/sh\necho \"$*\" >>\"$(dirname \"$0\")/resets\"\n";
        program(&path("reset"), reset);
        let (index, kind) = kind_named(kind).unwrap();
        let gpus = Shared::create(&path("gpus"), &node(index, kind, Options::default())).unwrap();
        Site {
            name,
            folder,
            gpus,
            begun: AtomicUsize::default(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of the stand-in for slurmctld.
    pub fn slurm(&self, name: &str) -> String {
        fs::read_to_string(self.path("slurm").join(name)).unwrap_or_default()
    }

    pub fn set_slurm(&self, name: &str, text: &str) {
        put(&self.path("slurm").join(name), text);
    }

    /// slurmctld goes, or comes back.
    pub fn away(&self, away: bool) {
        match away {
            true => self.set_slurm("away", ""),
            false => fs::remove_file(self.path("slurm/away")).unwrap(),
        }
    }

    /// A batch job runs on these GPUs.
    pub fn job(&self, id: u32, gpus: &str) {
        self.job_with_id(id, gpus, "");
    }

    /// The same, with Slurm's own id of the job: a line of its record.
    pub fn job_with_id(&self, id: u32, gpus: &str, sluid: &str) {
        let text = format!(
            "JobId={id} JobName=train\n{sluid}   UserId=ann(1000) GroupId=ann(1000)\n   JobState=RUNNING Reason=None\n   \
             Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n   NodeList=n1\n   NumNodes=1 NumCPUs=1\n     \
             Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:h100:1(IDX:{gpus})\n"
        );
        self.set_slurm(&format!("jobs/{id}"), &text);
    }

    /// Breaks a GPU.
    pub fn fault(&self, gpu: Option<usize>, words: &str) {
        self.hears_faults();
        let words: Vec<&str> = words.split(' ').collect();
        let fault = Fault::parse(&words).unwrap();
        self.gpus.update(|node| inject(node, gpu, &fault)).unwrap();
    }

    /// NVML tells nobody of events that were before he asked for them. A daemon whose log is elsewhere is not waited for long.
    fn hears_faults(&self) {
        let begun = self.begun.load(Ordering::Relaxed);
        let start = Instant::now();
        let mut patience = Duration::from_secs(10);
        while start.elapsed() < patience {
            // No daemon was started yet.
            let Ok(log) = fs::read(self.path("log")) else {
                return;
            };
            let newest = String::from_utf8_lossy(log.get(begun..).unwrap_or_default());
            if newest.contains("NVML's events are heard") {
                return;
            }
            if !newest.is_empty() {
                patience = LIMIT;
            }
            sleep(Duration::from_millis(30));
        }
    }

    /// A simulated GPU as it is now.
    pub fn gpu(&self, gpu: usize) -> Gpu {
        self.gpus.read(|node| node.gpus()[gpu])
    }

    /// Does something to a simulated GPU behind gpuosd's back.
    pub fn change(&self, gpu: usize, change: impl FnOnce(&mut Gpu)) {
        self.gpus.update(|node| change(&mut node.gpus_mut()[gpu]));
    }

    /// A reset command for [`Site::mend`].
    pub fn resets(&self) -> String {
        program(&self.path("reset-noted"), RESET);
        format!("{} {{index}}", self.path("reset-noted").display())
    }

    /// Does the resets that were asked for.
    pub fn mend(&self) {
        for gpu in 0..8 {
            let asked = self.path(&format!("slurm/resets.{gpu}"));
            if asked.exists() {
                self.gpus.update(|node| reset(node, gpu)).unwrap();
                fs::remove_file(asked).unwrap();
            }
        }
    }

    /// Makes a GPU as good as new.
    pub fn repair(&self, gpu: usize) {
        self.gpus.update(|node| repair(node, gpu)).unwrap();
    }

    /// A process computes on a GPU, or on none any more.
    pub fn compute(&self, pid: u32, gpu: Option<usize>) {
        self.gpus.update(|node| {
            let all = node
                .gpus_mut()
                .iter_mut()
                .flat_map(|gpu| &mut gpu.processes);
            all.filter(|one| one.pid == pid).for_each(|one| one.pid = 0);
            let Some(gpu) = gpu else { return };
            let mut places = node.gpus_mut()[gpu].processes.iter_mut();
            *places.find(|one| one.pid == 0).unwrap() = Process {
                pid,
                load: 50,
                memory_mib: 1000,
                gpu_instance: NO_INSTANCE,
                compute_instance: NO_INSTANCE,
                ..Process::default()
            };
        });
    }

    /// Starts gpuosd; it is killed when what is returned is dropped.
    pub fn start(&self) -> Daemon<'_> {
        self.start_with(&[])
    }

    pub fn start_with(&self, flags: &[&str]) -> Daemon<'_> {
        self.start_under(Command::new(env!("CARGO_BIN_EXE_gpuosd")), flags)
    }

    /// Starts gpuosd by a command that ends with its name.
    pub fn start_under(&self, mut command: Command, flags: &[&str]) -> Daemon<'_> {
        let test = std::env::current_exe().unwrap();
        // A test may have put a library of its own there.
        let own = Some(self.path("nvml.so")).filter(|own| own.exists());
        let library = own.unwrap_or_else(|| test.with_file_name("libnvidia_ml.so"));
        let path = std::env::var("PATH").unwrap_or_default();
        let begun = fs::metadata(self.path("log")).map_or(0, |log| log.len());
        self.begun.store(begun as usize, Ordering::Relaxed);
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        command
            .env("GPUOS_NVML_STATE", self.path("gpus"))
            .env("PATH", format!("{}:{path}", self.folder.path().display()))
            .env_remove("SLURMD_NODENAME")
            .args(["--node", self.name, "--interval", "1", "--nvml"])
            .arg(library)
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--runtime-dir")
            .arg(self.path("run"))
            .arg("--sysfs")
            .arg(self.path("sys"))
            .arg("--cgroup")
            .arg(self.path("cgroup"))
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        match self.path("slurm/config").exists() {
            // slurmctld says where gpuos.toml is.
            true => command.env_remove("GPUOS_CONF"),
            false => command.env("GPUOS_CONF", self.path("gpuos.toml")),
        };
        if !flags.contains(&"--answer-within") {
            // A busy machine is no fault: the stand-ins for Slurm's commands and MPS may be slow.
            command.args(["--answer-within", "60000"]);
        }
        if !flags.contains(&"--kernel-log") {
            command.arg("--kernel-log").arg(self.path("kmsg"));
        }
        if !flags.contains(&"--reset-command") {
            let reset = format!("{} {{pci}}", self.path("reset").display());
            command.args(["--reset-command", &reset]);
        }
        if !self.path("gpuos.toml").exists() {
            fs::write(self.path("gpuos.toml"), "").unwrap();
        }
        let child = command.spawn().unwrap();
        Daemon { site: self, child }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until `done` gives a value.
    pub fn until<T>(&self, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(value) = done() {
                return value;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain: {what}\n{}\n{}",
                self.log(),
                self.slurm("log")
            );
            sleep(Duration::from_millis(30));
        }
    }
}

/// A running gpuosd.
pub struct Daemon<'a> {
    site: &'a Site,
    child: Child,
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon<'_> {
    /// kill -9.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it still runs.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn socket(&self) -> PathBuf {
        self.site.path("run").join(NAME)
    }

    /// Connects as soon as it can.
    pub fn client(&self) -> Client {
        let connect = || Client::connect(&self.socket(), LIMIT).ok();
        self.site.until("gpuosd's socket", connect)
    }

    pub fn raw(&self) -> UnixStream {
        drop(self.client());
        UnixStream::connect(self.socket()).unwrap()
    }

    pub fn ask(&self, request: &Request) -> Result<Reply, ClientError> {
        self.client().ask(request)
    }

    /// Reports a step of user 1000 as slurmstepd does; the answer.
    pub fn start_step(&self, id: StepId, gpus: &[u8], asked: Asked) -> Reply {
        let request = Request::StepStart {
            id,
            uid: 1000,
            gpus: gpus.to_vec(),
            asked,
            mig: None,
            switchable: false,
            memory: None,
            reason: Reason::Devices,
        };
        self.ask(&request).unwrap()
    }

    pub fn status(&self) -> Status {
        match self.ask(&Request::Status).unwrap() {
            Reply::Status { status } => *status,
            other => panic!("{other:?}"),
        }
    }

    pub fn state(&self, gpu: usize) -> String {
        let gpus = self.status().gpus;
        gpus.get(gpu)
            .map(|gpu| gpu.state.clone())
            .unwrap_or_default()
    }

    /// Waits until all GPUs are known.
    pub fn ready(&self) {
        let eight = || {
            (self
                .status()
                .gpus
                .iter()
                .filter(|gpu| !gpu.uuid.is_empty())
                .count()
                == 8)
                .then_some(())
        };
        self.site.until("eight GPUs", eight);
    }

    /// Waits until the GPUs of its pool are known.
    pub fn ready_pool(&self) {
        let known = || {
            let gpus = self.status().gpus;
            let of_pool = |gpu: &gpuos_core::wire::GpuStatus| gpu.index.is_of_pool();
            (gpus.iter().filter(|gpu| of_pool(gpu)).count() == 2).then_some(())
        };
        self.site.until("two GPUs of the pool", known);
    }

    pub fn admin(&self, verb: Verb, gpu: u8) -> String {
        let request = Request::Admin {
            verb,
            gpus: vec![gpu.try_into().unwrap()],
            reason: "test".into(),
            force: false,
        };
        match self.ask(&request).unwrap() {
            Reply::Done { message } => message,
            other => panic!("{other:?}"),
        }
    }
}

/// Writes a file that others read: they find all of what it had, or all of what it has now.
pub fn put(path: &Path, text: &str) {
    let folder = path.parent().unwrap();
    let mut new = tempfile::NamedTempFile::new_in(folder.parent().unwrap()).unwrap();
    new.write_all(text.as_bytes()).unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    new.as_file().set_permissions(everybody).unwrap();
    new.persist(path).unwrap();
}

/// Whether a file system of its own can be mounted here.
pub fn mount(folder: &Path, size: &str) -> bool {
    fs::create_dir_all(folder).unwrap();
    let options = format!("size={size}");
    let done = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &options, "gpuosd-test"])
        .arg(folder)
        .output();
    done.is_ok_and(|done| done.status.success())
}

pub fn unmount(folder: &Path) {
    let _ = Command::new("umount").arg(folder).output();
}
