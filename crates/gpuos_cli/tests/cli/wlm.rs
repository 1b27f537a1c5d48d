//! `gpuos wlm` without a workload manager: what LSF and Torque would call, and what root refuses to touch.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

pub fn wlm(arguments: &[&str], stdin: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuos"));
    command.arg("wlm").args(arguments);
    fed(&mut command, stdin, variables)
}

pub fn fed(command: &mut Command, stdin: &str, variables: &[(&str, &str)]) -> Output {
    for name in [
        "GPUOS_TOPOLOGY",
        "GPUOS_SAVES",
        "GPUOS_RESTORE",
        "CUDA_VISIBLE_DEVICES",
        "PBS_GPUFILE",
        "PBS_JOBID",
        "PBS_NODENUM",
        "PBS_TASKNUM",
        "LSB_CHKPNT_DIR",
        "LSB_ECHKPNT_METHOD",
    ] {
        command.env_remove(name);
    }
    let mut child = command
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a program");
    let mut input = child.stdin.take().expect("its input");
    // One that does not read it is no fault.
    let _ = input.write_all(stdin.as_bytes());
    drop(input);
    child.wait_with_output().expect("its output")
}

/// A process that does not outlive its test.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).expect("a mode");
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An adapter, with the command that is under test in place of the installed one.
pub fn adapter(work: &TempDir, name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let text = fs::read_to_string(root.join(name)).expect("an adapter");
    assert!(
        text.lines().count() <= 60,
        "{name} is longer than an adapter"
    );
    let here = work.path().display();
    let text = text
        .replace("/usr/bin/gpuos", env!("CARGO_BIN_EXE_gpuos"))
        .replace("/usr/share/gpuos/lsf/", &format!("{here}/lsf-"))
        .replace("/etc/default/", &format!("{here}/default-"));
    let path = work.path().join(name.replace('/', "-"));
    fs::write(&path, text).expect("a file");
    mode(&path, 0o755);
    path.display().to_string()
}

pub fn run(adapter: &str, arguments: &[&str], stdin: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(adapter);
    command.args(arguments);
    fed(&mut command, stdin, variables)
}

#[test]
fn lsf_has_a_wish_checked_and_a_job_told_its_gpus() {
    let work = TempDir::new().unwrap();
    let esub = adapter(&work, "lsf/esub.gpuos");
    let asked = [
        ("LSB_SUB_PARM_FILE", "/dev/null"),
        ("LSB_SUB_ABORT_VALUE", "97"),
    ];
    let with = |wish| [asked[0], asked[1], ("GPUOS_TOPOLOGY", wish)];
    assert_eq!(code(&run(&esub, &[], "", &asked)), 0);
    assert_eq!(code(&run(&esub, &[], "", &with("nvlink:required"))), 0);
    let refused = run(&esub, &[], "", &with("rack"));
    assert_eq!((code(&refused), out(&refused)), (97, String::new()));
    assert!(
        errors(&refused).contains("GPUOS_TOPOLOGY=rack: a job on one host has no level 'rack'"),
        "{refused:?}"
    );

    let print = "echo $CUDA_VISIBLE_DEVICES $GPUOS_GPUS $GPUOS_LEVEL";
    let job = ["wrap", "lsf", "--type", "pairs-8", "--", "sh", "-c", print];
    let told = wlm(&job, "", &[("CUDA_VISIBLE_DEVICES", "2,3")]);
    assert_eq!(out(&told), "2,3 2,3 nvlink\n");
    let apart = [
        ("CUDA_VISIBLE_DEVICES", "3,4"),
        ("GPUOS_TOPOLOGY", "nvlink:required"),
    ];
    let later = wlm(&job, "", &apart);
    assert_eq!((code(&later), out(&later)), (99, String::new()));
    assert!(errors(&later).contains("3,4"), "{later:?}");
    // A job without GPUs is started as it is.
    assert_eq!(out(&wlm(&job, "", &[])), "\n");
}

#[test]
fn torque_has_a_script_handed_on_or_refused() {
    let work = TempDir::new().unwrap();
    let filter = adapter(&work, "torque/submitfilter");
    let script = "#!/bin/sh\n#PBS -v GPUOS_TOPOLOGY=nvlink\ntrain\n";
    let taken = run(&filter, &["-h", "-l", "nodes=1:gpus=2"], script, &[]);
    assert_eq!((code(&taken), out(&taken)), (0, script.to_string()));
    let refused = run(&filter, &["-v", "GPUOS_TOPOLOGY=x:y"], script, &[]);
    assert_eq!((code(&refused), out(&refused)), (255, String::new()));
    assert!(
        errors(&refused).contains("'y' is not understood"),
        "{refused:?}"
    );

    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim().split('.').next().unwrap();
    let gpus = work.path().join("gpus");
    fs::write(&gpus, format!("{host}-gpu4\n{host}-gpu5\nelsewhere-gpu0\n")).unwrap();
    let print = "echo $CUDA_VISIBLE_DEVICES $GPUOS_LEVEL";
    let job = [
        "wrap", "torque", "--type", "pairs-8", "--", "sh", "-c", print,
    ];
    let told = wlm(&job, "", &[("PBS_GPUFILE", gpus.to_str().unwrap())]);
    assert_eq!(out(&told), "4,5 nvlink\n");
}

#[test]
fn reports_have_the_form_of_each_manager() {
    let work = TempDir::new().unwrap();
    let state = work.path().join("none").display().to_string();
    let ask = [
        "sense",
        "gridengine",
        "--type",
        "pairs-8",
        "--node-name",
        "n1",
        "--state",
        &state,
    ];
    let said = wlm(&ask, "\n\nquit\n", &[]);
    let one = "begin\nn1:gpuos_topo:pairs-8\nn1:gpuos_free:8\nn1:gpuos_nvlink:2\nend\n";
    assert_eq!(out(&said), one.repeat(2));
    let none = wlm(&["sense", "torque"], "", &[]);
    assert!(
        code(&none) == 1 && errors(&none).contains("Torque reports GPUs itself"),
        "{none:?}"
    );
}

/// A job of Grid Engine that is about to start: its folder, and what qstat prints.
pub struct Job {
    pub work: TempDir,
    pub record: String,
}

impl Job {
    pub fn new(gpus: u32) -> Job {
        let work = TempDir::new().unwrap();
        let spool = work.path().join("active_jobs/7.1");
        fs::create_dir_all(&spool).unwrap();
        let pid = format!("{}\n", std::process::id());
        for (name, text) in [
            ("pid", &pid[..]),
            ("config", "add_grp_id=0\n"),
            ("environment", "A=1\n"),
        ] {
            fs::write(spool.join(name), text).unwrap();
            mode(&spool.join(name), 0o644);
        }
        mode(&spool, 0o755);
        let record = format!(
            "<detailed_job_info><djob_info><element><JB_job_number>7</JB_job_number><JB_uid>4000000</JB_uid><JB_hard_resource_list>\
             <x><CE_name>gpu</CE_name><CE_doubleval>{gpus}.000000</CE_doubleval><CE_consumable>2</CE_consumable></x>\
             </JB_hard_resource_list></element></djob_info></detailed_job_info>"
        );
        Job { work, record }
    }

    pub fn call(&self, verb: &str, spool: &str) -> Output {
        self.call_with(verb, spool, &[])
    }

    pub fn call_with(&self, verb: &str, spool: &str, more: &[&str]) -> Output {
        let (spool, state) = (self.work.path().join(spool), self.work.path().join("state"));
        let spool = spool.display().to_string();
        let state = state.display().to_string();
        let words = [
            verb, "--job", "7", "--task", "0", "--spool", &spool, "--type", "pairs-8", "--state",
            &state,
        ];
        wlm(&[&words, more].concat(), &self.record, &[])
    }

    pub fn environment(&self) -> String {
        fs::read_to_string(self.work.path().join("active_jobs/7.1/environment")).unwrap()
    }
}

/// A folder that looks like the job's, of a user who has nothing to do with either the job or Grid Engine.
#[test]
fn a_folder_of_a_second_users_is_not_the_jobs() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return;
    }
    let folder = |job: &Job, name: &str| job.work.path().join(name);
    let names = [
        "active_jobs/7.1/environment",
        "active_jobs/7.1/pid",
        "active_jobs/7.1/config",
        "active_jobs/7.1",
        "active_jobs",
    ];
    // All of it, one file, or only what the folder lies in.
    for (owned, code_of) in [
        (&names[..], 1),
        (&names[..1], 1),
        (&names[3..4], 1),
        (&names[4..], 1),
        (&[], 0),
    ] {
        let job = Job::new(1);
        for name in owned {
            chown(folder(&job, name), Some(4_000_007), None).unwrap();
        }
        let done = job.call("prolog", "active_jobs/7.1");
        assert_eq!(code(&done), code_of, "{owned:?} {done:?}");
        assert_eq!(job.environment() == "A=1\n", code_of == 1, "{owned:?}");
    }
    // The account of Grid Engine is no second user: `nobody` is one that all machines have.
    let job = Job::new(1);
    let said = Command::new("id").args(["-u", "nobody"]).output().unwrap();
    let uid: u32 = String::from_utf8_lossy(&said.stdout)
        .trim()
        .parse()
        .unwrap();
    for name in names {
        chown(folder(&job, name), Some(uid), None).unwrap();
    }
    let cell = folder(&job, "cell/default/common");
    fs::create_dir_all(&cell).unwrap();
    fs::write(
        cell.join("bootstrap"),
        "binary_path /x\nadmin_user              nobody\n",
    )
    .unwrap();
    let root = folder(&job, "cell").display().to_string();
    let spool = folder(&job, "active_jobs/7.1").display().to_string();
    let state = folder(&job, "state").display().to_string();
    let words = [
        "prolog", "--job", "7", "--spool", &spool, "--type", "pairs-8", "--state", &state,
    ];
    let done = wlm(&words, &job.record, &[("SGE_ROOT", &root)]);
    assert_eq!(code(&done), 0, "{done:?}");
}

#[test]
fn root_writes_into_the_file_of_the_job_alone() {
    let job = Job::new(2);
    let done = job.call("prolog", "active_jobs/7.1");
    assert_eq!(code(&done), 0, "{done:?}");
    let told = "A=1\nCUDA_VISIBLE_DEVICES=0,1\nCUDA_DEVICE_ORDER=PCI_BUS_ID\nGPUOS_GPUS=0,1\nGPUOS_LEVEL=nvlink\n";
    assert_eq!(job.environment(), told);
    assert!(job.work.path().join("state/7.1").is_file());
    // Whoever can open the lock can keep all jobs of the host waiting.
    let lock = fs::metadata(job.work.path().join("state/lock")).unwrap();
    assert_eq!(lock.permissions().mode() & 0o777, 0o600);
    assert_eq!(code(&job.call("epilog", "active_jobs/7.1")), 0);
    assert!(!job.work.path().join("state/7.1").exists());

    let spool = |job: &Job, name: &str| job.work.path().join("active_jobs/7.1").join(name);
    let victim = "not to be touched\n";
    for plant in ["link", "hard link", "open", "folder"] {
        let job = Job::new(1);
        let file = job.work.path().join("victim");
        fs::write(&file, victim).unwrap();
        let environment = spool(&job, "environment");
        fs::remove_file(&environment).unwrap();
        match plant {
            "link" => symlink(&file, &environment).unwrap(),
            "hard link" => fs::hard_link(&file, &environment).unwrap(),
            "folder" => fs::create_dir(&environment).unwrap(),
            _ => {
                fs::write(&environment, "").unwrap();
                mode(&environment, 0o666);
            }
        }
        let refused = job.call("prolog", "active_jobs/7.1");
        assert!(
            code(&refused) == 1 && errors(&refused).contains("not the file of sge_execd"),
            "{plant}: {refused:?}"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), victim, "{plant}");
    }
    // Nor into a folder that is not the job's.
    let job = Job::new(1);
    fs::create_dir_all(job.work.path().join("active_jobs/8.1")).unwrap();
    symlink(
        job.work.path().join("active_jobs/7.1"),
        job.work.path().join("7.1"),
    )
    .unwrap();
    for other in [
        "active_jobs/8.1",
        "active_jobs/../active_jobs",
        "7.1",
        "nowhere/7.1",
        ".",
    ] {
        let refused = job.call("prolog", other);
        assert_eq!(code(&refused), 1, "{other}: {refused:?}");
        assert_eq!(job.environment(), "A=1\n", "{other}");
    }
}

#[test]
fn what_a_job_holds_is_free_again_when_all_of_it_has_gone() {
    let job = Job::new(8);
    let keeper = Command::new("sleep").arg("1000").spawn().expect("sleep");
    let mut keeper = Ended(keeper);
    let spool = job.work.path().join("active_jobs/7.1");
    fs::write(spool.join("pid"), format!("{}\n", keeper.0.id())).unwrap();
    assert_eq!(code(&job.call("prolog", "active_jobs/7.1")), 0);
    // Job 8, while the keeper of 7 is there and after it was killed.
    let state = job.work.path().join("state").display().to_string();
    let ask = [
        "sense",
        "gridengine",
        "--type",
        "pairs-8",
        "--node-name",
        "n",
        "--state",
        &state,
    ];
    assert!(out(&wlm(&ask, "\n", &[])).contains("n:gpuos_free:0\n"));
    keeper.0.kill().unwrap();
    keeper.0.wait().unwrap();
    assert!(out(&wlm(&ask, "\n", &[])).contains("n:gpuos_free:8\n"));
    let other = Job {
        work: job.work,
        record: job.record.replace("<JB_job_number>7<", "<JB_job_number>8<"),
    };
    let refused = other.call("prolog", "active_jobs/7.1");
    assert_eq!(code(&refused), 100, "{refused:?}");
    assert!(
        errors(&refused).contains("another job than 7"),
        "{refused:?}"
    );
}

/// A program that a run of a job left behind keeps its GPUs, also from the same job when that is started again, and whatever a
/// user named the job.
#[test]
fn a_job_that_runs_again_leaves_gpus_to_what_it_left_behind() {
    let own = Command::new("id").arg("-u").output().expect("id");
    if out(&own).trim() != "0" {
        // Only root can have a process with a group of its own.
        return;
    }
    let job = Job::new(2);
    let spool = job.work.path().join("active_jobs/7.1");
    let config = |group: u32| {
        let mut text = format!("add_grp_id={group}\njob_name=").into_bytes();
        text.extend(b"\xff\n");
        fs::write(spool.join("config"), text).unwrap();
    };
    let start = |group: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--groups", group, "sleep", "1000"]);
        Ended(command.spawn().expect("setpriv"))
    };
    let mut left = start("58791");
    let groups = format!("/proc/{}/status", left.0.id());
    while !fs::read_to_string(&groups).unwrap().contains("58791") {
        assert!(left.0.try_wait().unwrap().is_none(), "setpriv failed");
        std::thread::sleep(Duration::from_millis(20));
    }
    let keeper = start("58792");
    let state = |name: &str| fs::read_to_string(job.work.path().join("state").join(name));
    fs::write(spool.join("pid"), format!("{}\n", keeper.0.id())).unwrap();
    config(58791);
    assert_eq!(code(&job.call("prolog", "active_jobs/7.1")), 0);
    assert!(state("7.1").unwrap().contains("group 58791\n"));
    // Its shepherd is killed, and it is started again with another group.
    drop(keeper);
    fs::write(spool.join("pid"), format!("{}\n", std::process::id())).unwrap();
    config(58793);
    assert_eq!(code(&job.call("prolog", "active_jobs/7.1")), 0);
    let told = job.environment();
    assert!(told.contains("GPUOS_GPUS=0,1\n"), "{told}");
    assert!(told.contains("GPUOS_GPUS=2,3\n"), "{told}");
    assert!(state("7.1.58791").unwrap().contains("gpus 0,1\n"));
    assert_eq!(code(&job.call("epilog", "active_jobs/7.1")), 0);
    assert!(state("7.1").is_err() && state("7.1.58791").is_ok());
    left.0.kill().unwrap();
    left.0.wait().unwrap();
    assert_eq!(code(&job.call("epilog", "active_jobs/7.1")), 0);
    assert!(state("7.1.58791").is_err());
    // What cannot be understood frees nothing.
    let garbled = job.work.path().join("state/9.1");
    fs::write(&garbled, "gpus 0,\n").unwrap();
    let refused = job.call("prolog", "active_jobs/7.1");
    assert!(
        code(&refused) == 1 && errors(&refused).contains("does not say which GPUs"),
        "{refused:?}"
    );
}

/// An argument of a job can have lines of the protocol in it, which come together with those of Grid Engine.
#[test]
fn lines_that_come_with_the_end_of_a_job_are_not_answered() {
    let told = "START\nPARAM CMDARG0 x\nBEGIN\nSTART\nPARAM l_hard gpu=1\n";
    let said = wlm(&["submit-filter", "gridengine"], told, &[]);
    assert_eq!((code(&said), out(&said)), (0, "STARTED\n".to_string()));
}

/// Where sh is bash it takes functions from the environment, which is the job's user's, and `[` is a name like any other.
#[test]
fn roots_scripts_take_no_functions_from_a_jobs_environment() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/gridengine");
    for name in ["prolog", "epilog", "site"] {
        let path = folder.join(name);
        let text = fs::read_to_string(&path).unwrap();
        let flags = text
            .lines()
            .next()
            .and_then(|it| it.strip_prefix("#!/bin/sh"));
        for function in ["BASH_FUNC_[%%", "BASH_FUNC_exec%%", "BASH_FUNC_shift%%"] {
            let mut command = Command::new("bash");
            command.arg0("sh").args(flags.unwrap().split_whitespace());
            command.arg(&path).args(["7", "undefined", "root"]);
            command.env(function, "() { echo stolen >&2; }");
            let out = command.output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(!said.contains("stolen"), "{name}, {function}: {said}");
        }
    }
}
