//! The starters of LSF and Torque: a job that says nothing to gpuos starts as it came, whatever it was given and wherever it runs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use proptest::prelude::*;
use tempfile::TempDir;

use crate::wlm::{adapter, code, errors, out, wlm};

/// What a shell sets of its own, whichever starts a job.
const OF_SHELLS: [&[u8]; 4] = [b"PWD", b"OLDPWD", b"SHLVL", b"_"];

/// Names of GPUs that no host has, or none that CUDA would read.
const VISIBLE: [&[u8]; 12] = [
    b"MIG-3f1c9a52-5b0e-5f0e-9d0c-5e5f3c1d2a10",
    b"MIG-GPU-3f1c9a52-5b0e-5f0e-9d0c-5e5f3c1d2a10/1/0,MIG-b",
    b"GPU-3f1c9a52",
    b"99",
    b"0,1",
    b"",
    b" ",
    b"NoDevFiles",
    b"-1",
    b" 0 ,, 1 ",
    b"0\n1",
    b"\xff\xfe",
];

type Variables = BTreeMap<OsString, OsString>;

/// Starters as packages have them, on a host where nothing of NVIDIA's is.
struct Starters {
    work: TempDir,
}

impl Starters {
    fn new() -> Starters {
        let work = TempDir::new().unwrap();
        let starters = Starters { work };
        for manager in ["lsf", "torque"] {
            let path = adapter(&starters.work, &format!("{manager}/starter"));
            let text = fs::read_to_string(&path).unwrap();
            let flags = format!("wlm wrap {manager} --nvml /none/libnvidia-ml.so.1");
            fs::write(&path, text.replace(&format!("wlm wrap {manager}"), &flags)).unwrap();
        }
        starters
    }

    fn start(&self, manager: &str, words: &[&str], variables: &Variables) -> Output {
        Command::new(self.work.path().join(format!("{manager}-starter")))
            .args(words)
            .env_clear()
            .envs(variables)
            .stdin(Stdio::null())
            .output()
            .expect("a starter")
    }

    /// What a job's program finds, and what its standard error has.
    fn environment(&self, manager: &str, variables: &Variables) -> (Variables, String) {
        let output = self.start(manager, &["/usr/bin/env", "-0"], variables);
        assert_eq!(code(&output), 0, "{output:?}");
        let pairs = output.stdout.split(|byte| *byte == 0);
        let pair = |text: &[u8]| {
            let at = text.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (text[..at].to_vec(), text[at + 1..].to_vec());
            Some((OsString::from_vec(name), OsString::from_vec(value)))
        };
        (pairs.filter_map(pair).collect(), errors(&output))
    }
}

fn variables(pairs: &[(&str, &[u8])]) -> Variables {
    let pair = |(name, value): &(&str, &[u8])| ((*name).into(), OsString::from_vec(value.to_vec()));
    pairs.iter().map(pair).collect()
}

/// The variables of a job but for those of shells.
fn of_job(mut variables: Variables) -> Variables {
    variables.retain(|name, _| !OF_SHELLS.contains(&name.as_bytes()));
    variables
}

/// A pipe: whoever opens it waits without end.
fn make_pipe(path: &str) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

fn is_one_line(text: &str) -> bool {
    text.starts_with("gpuos: the job starts, but ")
        && text.ends_with('\n')
        && text.lines().count() == 1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Names that are none of a shell's, and values that are no text.
    #[test]
    fn a_job_starts_with_the_environment_and_the_words_that_it_came_with(
        visible in prop::sample::select(&VISIBLE[..]),
        manager in prop::sample::select(vec!["lsf", "torque"]),
        more in prop::collection::btree_map("x[A-Za-z0-9_.%(){}\\[\\]-]{0,12}", prop::collection::vec(1u8.., 0..40), 0..6),
        words in prop::collection::vec("[^\\x00]{0,12}", 0..4),
        ends in 0u8..,
    ) {
        let starters = Starters::new();
        let mut given = variables(&[
            ("CUDA_VISIBLE_DEVICES", visible),
            ("BASH_FUNC_module%%", b"() { :; }"),
            ("SAVES", b"mine"),
            ("GPUOS_SAVES", b"/mine"),
            ("PBS_JOBID", b"17.head"),
            ("PATH", b"/usr/bin:/bin"),
        ]);
        given.extend(more.into_iter().map(|(name, value)| (name.into(), OsString::from_vec(value))));
        let (found, said) = starters.environment(manager, &given);
        prop_assert_eq!(of_job(found), of_job(given.clone()));
        let has_gpus = manager == "lsf" && !String::from_utf8_lossy(visible).trim().is_empty();
        prop_assert!(if has_gpus { is_one_line(&said) } else { said.is_empty() }, "{}", said);

        let end = format!("printf '%s\\0' \"$@\"; exit {ends}");
        let mut all = vec!["sh", "-c", &end, "sh", "first"];
        all.extend(words.iter().map(String::as_str));
        let ended = starters.start(manager, &all, &given);
        let printed: String = all[4..].iter().map(|word| format!("{word}\0")).collect();
        prop_assert_eq!((code(&ended), out(&ended)), (i32::from(ends), printed));
    }
}

#[test]
fn a_job_starts_where_its_gpus_cannot_be_looked_at() {
    let work = TempDir::new().unwrap();
    let at = |name: &str| work.path().join(name).display().to_string();
    make_pipe(&at("pipe"));
    fs::write(at("text"), "no library").unwrap();
    for (library, why) in [
        ("/none/libnvidia-ml.so.1".to_string(), "cannot be opened"),
        (at("text"), "cannot be opened"),
        (at("pipe"), "gave no answer within 1 s"),
    ] {
        let job = [
            "wrap",
            "lsf",
            "--limit",
            "1",
            "--nvml",
            &library,
            "--",
            "sh",
            "-c",
            "echo $CUDA_VISIBLE_DEVICES",
        ];
        let started = wlm(&job, "", &[("CUDA_VISIBLE_DEVICES", "1,0")]);
        assert_eq!(
            (code(&started), out(&started)),
            (0, "1,0\n".into()),
            "{started:?}"
        );
        let said = errors(&started);
        assert!(is_one_line(&said) && said.contains(why), "{said}");
        // One GPU is near itself.
        let alone = [
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("GPUOS_TOPOLOGY", "nvlink:required"),
        ];
        assert_eq!(code(&wlm(&job, "", &alone)), 0);
        let requires = [
            ("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b"),
            ("GPUOS_TOPOLOGY", "nvlink:required"),
        ];
        let ended = wlm(&job, "", &requires);
        assert_eq!((code(&ended), out(&ended)), (1, String::new()), "{ended:?}");
        assert!(errors(&ended).contains("requires NVLink"), "{ended:?}");
    }
    // Names that this host does not have.
    for visible in ["9", "MIG-a", "GPU-a", "0,0", "0,,1", "NoDevFiles"] {
        let job = [
            "wrap",
            "lsf",
            "--type",
            "pairs-8",
            "--",
            "sh",
            "-c",
            "echo $CUDA_VISIBLE_DEVICES",
        ];
        let started = wlm(&job, "", &[("CUDA_VISIBLE_DEVICES", visible)]);
        assert_eq!(
            (code(&started), out(&started)),
            (0, format!("{visible}\n")),
            "{started:?}"
        );
        let said = errors(&started);
        assert!(
            is_one_line(&said) && said.contains("not GPUs of this host"),
            "{said}"
        );
    }
}

#[test]
fn a_file_of_gpus_that_is_none_keeps_no_job_of_torque() {
    let work = TempDir::new().unwrap();
    let at = |name: &str| work.path().join(name).display().to_string();
    make_pipe(&at("pipe"));
    fs::write(at("words"), "no GPU\x1b[2J\n").unwrap();
    fs::write(at("bytes"), b"\xff\xfe\n").unwrap();
    fs::write(at("empty"), "\n").unwrap();
    fs::write(at("elsewhere"), "no-host-of-that-name-gpu0\n").unwrap();
    let job = ["wrap", "torque", "--type", "pairs-8", "--", "echo", "runs"];
    for (name, why) in [
        ("missing", "No such file"),
        ("pipe", "it is no file"),
        (".", "it is no file"),
        ("words", "names no GPU"),
        ("bytes", "names no GPU"),
        ("empty", ""),
        ("elsewhere", ""),
    ] {
        let started = wlm(&job, "", &[("PBS_GPUFILE", &at(name))]);
        assert_eq!(
            (code(&started), out(&started)),
            (0, "runs\n".into()),
            "{name}"
        );
        let said = errors(&started);
        let as_due = if why.is_empty() {
            said.is_empty()
        } else {
            is_one_line(&said) && said.contains(why)
        };
        assert!(as_due && !said.contains('\x1b'), "{name}: {said}");
    }
}

#[test]
fn a_job_starts_where_no_folder_for_checkpoints_can_be_made() {
    let starters = Starters::new();
    let site = starters.work.path().join("default-gpuos-torque");
    let print = ["sh", "-c", "echo [$GPUOS_SAVES]"];
    let path: (&str, &[u8]) = ("PATH", b"/usr/bin:/bin");
    for (site_has, job) in [
        ("/proc/none", &b"17.head"[..]),
        ("/tmp", b"../17"),
        ("/tmp", b"\xff"),
    ] {
        fs::write(&site, format!("SAVES={site_has}\n")).unwrap();
        let started = starters.start("torque", &print, &variables(&[path, ("PBS_JOBID", job)]));
        assert_eq!(
            (code(&started), out(&started)),
            (0, "[]\n".into()),
            "{started:?}"
        );
        assert!(is_one_line(&errors(&started)), "{started:?}");
    }
    // A site's file that no shell can read.
    fs::write(&site, "SAVES=(\n").unwrap();
    let started = starters.start(
        "torque",
        &print,
        &variables(&[path, ("PBS_JOBID", b"17.head")]),
    );
    assert_eq!(
        (code(&started), out(&started)),
        (0, "[]\n".into()),
        "{started:?}"
    );
    // Of LSF, a job that names no method, and one that has both without.
    let folder: (&str, &[u8]) = ("LSB_CHKPNT_DIR", b"/proc/none");
    for more in [("X", &b"1"[..]), ("CUDA_VISIBLE_DEVICES", b"MIG-a")] {
        let started = starters.start("lsf", &print, &variables(&[path, folder, more]));
        assert_eq!(
            (code(&started), out(&started)),
            (0, "[]\n".into()),
            "{started:?}"
        );
        assert!(is_one_line(&errors(&started)), "{started:?}");
    }
    // One that asks gpuos for checkpoints does not run without.
    let method: (&str, &[u8]) = ("LSB_ECHKPNT_METHOD", b"gpuos");
    let ended = starters.start("lsf", &print, &variables(&[path, folder, method]));
    assert_eq!((code(&ended), out(&ended)), (1, String::new()), "{ended:?}");
}

#[test]
fn a_program_ends_as_it_would_by_itself() {
    let starters = Starters::new();
    let given = variables(&[("PATH", b"/usr/bin:/bin")]);
    for manager in ["lsf", "torque"] {
        let start = |words: &[&str]| starters.start(manager, words, &given);
        assert_eq!(
            start(&["sh", "-c", "kill -TERM $$"]).status.signal(),
            Some(15)
        );
        // As a shell has it.
        for (program, ends) in [
            ("no-such-program", 127),
            ("/etc/passwd", 126),
            ("/none/x", 127),
        ] {
            let failed = start(&[program]);
            assert_eq!(code(&failed), ends, "{manager}: {failed:?}");
            assert!(errors(&failed).contains(program), "{failed:?}");
        }
        // What is ignored stays so, and a standard error that takes nothing keeps no job.
        let path = starters.work.path().join(format!("{manager}-starter"));
        let line = format!(
            "trap '' HUP USR2; exec {} cat /proc/self/status 2>/dev/full",
            path.display()
        );
        let mut shell = Command::new("sh");
        let output = shell
            .args(["-c", &line])
            .env("CUDA_VISIBLE_DEVICES", "MIG-a")
            .output()
            .unwrap();
        let status = out(&output);
        let ignored = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:\t"));
        let ignored = u64::from_str_radix(ignored.unwrap_or_default(), 16).unwrap_or(0);
        assert_eq!(
            ignored & (1 | 1 << 11),
            1 | 1 << 11,
            "{manager}: {output:?}"
        );
        // Nor does a host that has lost the command.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(
            &path,
            text.replace(env!("CARGO_BIN_EXE_gpuos"), "/none/gpuos"),
        )
        .unwrap();
        let started = start(&["echo", "a  b"]);
        assert_eq!(
            (code(&started), out(&started)),
            (0, "a  b\n".into()),
            "{started:?}"
        );
        assert!(is_one_line(&errors(&started)), "{started:?}");
    }
}

/// A submit filter, with words that may be no text.
fn filter(words: &[&[u8]], script: &Path, variables: &[(&str, &str)]) -> Output {
    let word = |word: &&[u8]| OsString::from_vec(word.to_vec());
    Command::new(env!("CARGO_BIN_EXE_gpuos"))
        .args(["wlm", "submit-filter", "torque", "--"])
        .args(words.iter().map(word))
        .env_remove("GPUOS_TOPOLOGY")
        .envs(variables.iter().copied())
        .stdin(fs::File::open(script).unwrap())
        .output()
        .expect("a filter")
}

#[test]
fn a_script_of_torque_goes_on_byte_for_byte() {
    let work = TempDir::new().unwrap();
    let script = work.path().join("script");
    let long = [&b"#PBS -N x\ntrain\n"[..], &vec![b'y'; (64 << 20) + 9]].concat();
    for text in [
        &b""[..],
        b"#PBS -N \xff\xfe\ntrain\0\r\n",
        b"#PBS -v A='x\ntrain",
        &long,
    ] {
        fs::write(&script, text).unwrap();
        let taken = filter(&[b"-N", b"\xff", b"-v", b"A=\n"], &script, &[]);
        assert!(
            code(&taken) == 0 && taken.stdout == text,
            "{}",
            errors(&taken)
        );
    }
    // What the shell has that submits the job is not the job's.
    fs::write(&script, "train\n").unwrap();
    let shell = [("GPUOS_TOPOLOGY", "rack")];
    assert_eq!(code(&filter(&[], &script, &shell)), 0);
    assert_eq!(code(&filter(&[b"-V"], &script, &shell)), 255);
    fs::write(
        &script,
        "#PBS -l nodes=1:gpus=2 -l gpuos_topology=nvlink -N x\ntrain\n",
    )
    .unwrap();
    let refused = filter(&[], &script, &[]);
    assert_eq!((code(&refused), out(&refused)), (255, String::new()));
    assert!(
        errors(&refused).contains("write -v GPUOS_TOPOLOGY=VALUE"),
        "{refused:?}"
    );
}

#[test]
fn lsf_checks_the_environment_that_a_job_will_have() {
    let work = TempDir::new().unwrap();
    let esub = adapter(&work, "lsf/esub.gpuos");
    let file = work.path().join("parameters");
    let check = |text: &[u8], own: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(&esub);
        command
            .env("LSB_SUB_PARM_FILE", &file)
            .env("LSB_SUB_ABORT_VALUE", "97")
            .env("GPUOS_TOPOLOGY", own);
        code(&command.stdin(Stdio::null()).output().expect("esub"))
    };
    let env = |list: &str| {
        format!("LSB_SUB_QUEUE=\"q\"\nLSB_SUB4_SUB_ENV_VARS=\"{list}\"\n").into_bytes()
    };
    for (list, own, ends) in [
        ("all, X=1", "rack", 97),
        ("all, X=1", "node", 0),
        ("none", "rack", 0),
        ("X=1, Y", "rack", 0),
        ("all, ~GPUOS_TOPOLOGY", "rack", 0),
        ("all, GPUOS_TOPOLOGY=node", "rack", 0),
        ("all, GPUOS_TOPOLOGY=rack", "node", 97),
        ("GPUOS_TOPOLOGY='nvlink:maybe', X=1", "", 97),
    ] {
        assert_eq!(check(&env(list), own), ends, "{list} {own}");
    }
    for text in [
        &b"LSB_SUB_COMMAND_LINE=\"x\nLSB_SUB4_SUB_ENV_VARS=none\"\n"[..],
        b"\xff=\"",
        b"",
    ] {
        assert_eq!(check(text, "rack"), 97);
        assert_eq!(check(text, "node"), 0);
    }
}
