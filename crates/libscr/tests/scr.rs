//! libscr.so as C programs see it: one rank without MPI, and four by a stand-in with the ABI of Open MPI, by one with MPICH's, and by each MPI that is installed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use support::{Mover, root};
use tempfile::TempDir;

#[allow(dead_code, reason = "tests of the protocol need more of it")]
#[path = "../../gpuos_program/tests/support/mod.rs"]
mod support;

/// Whether a compiler is here; else the test is skipped, and says so.
fn here(compiler: &str) -> bool {
    let version = Command::new(compiler).arg("--version").output();
    let here = version.is_ok_and(|out| out.status.success());
    if !here {
        eprintln!("skipped: there is no {compiler} here");
    }
    here
}

/// A folder with the library under the names that programs look for.
fn library() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let own = std::env::current_exe().expect("own path");
    // cargo builds it beside the tests of this crate.
    let built = own.parent().expect("a folder").join("libscr.so");
    assert!(built.exists(), "{}", built.display());
    for name in ["libscr-gpuos.so.0", "libscr.so"] {
        symlink(&built, folder.path().join(name)).expect("a link");
    }
    folder
}

fn source(name: &str) -> PathBuf {
    root().join("crates/libscr/tests").join(name)
}

/// Compiles `sources` into a program in `folder`; nothing may be said.
fn compile(
    compiler: &str,
    folder: &Path,
    flags: &[&str],
    sources: &[PathBuf],
    to: &str,
) -> PathBuf {
    let program = folder.join(to);
    let lib = folder.display();
    let mut command = Command::new(compiler);
    command
        .current_dir(folder)
        .args([
            "-std=c99",
            "-D_DEFAULT_SOURCE",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
        ])
        .arg(format!("-I{}", root().join("include").display()))
        .args(flags)
        .args(sources)
        .args([&format!("-L{lib}"), &format!("-Wl,-rpath,{lib}")])
        .arg("-o")
        .arg(&program);
    match to.ends_with(".so") {
        true => command.args(["-shared", "-fPIC"]),
        false => command.arg("-lscr"),
    };
    let out = command.output().expect("a compiler");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.is_empty(), "{text}");
    program
}

fn finished(out: &Output) {
    assert!(out.status.success(), "{out:?}");
}

/// Runs each part of `each.c`, by whatever starts its ranks.
fn each(ranks: u16, start: impl Fn(&str, Option<&Mover>, &Path) -> Vec<Child>) {
    let work = tempfile::tempdir().expect("a folder");
    let ended = |programs: Vec<Child>| {
        let mut said = String::new();
        for program in programs {
            let out = program.wait_with_output().expect("ends");
            finished(&out);
            said += &String::from_utf8_lossy(&out.stderr);
        }
        said
    };
    if ranks == 1 {
        ended(start("without", None, work.path()));
        assert!(!work.path().join("state").exists());
    }
    let mover = Mover::start();
    let programs = start("with", Some(&mover), work.path());
    mover.ended(mover.ask("interval")).expect("committed");
    mover
        .ended(mover.ask_in_vain("asked", "no room"))
        .expect_err("fails");
    mover.ended(mover.ask("asked")).expect("committed");
    mover.ended(mover.ask("end")).expect("committed");
    let said = ended(programs);
    // By one rank, once, with the reason and from where the program would go on.
    let lost = said.lines().filter(|line| line.contains("came to nothing"));
    let lost: Vec<&str> = lost.collect();
    assert!(
        matches!(&lost[..], [line] if line.contains("checkpoint 2") && line.contains("no room") && line.contains("checkpoint 1")),
        "{said}"
    );
    for rank in 0..ranks {
        let kept = mover.kept(1, rank);
        let state = fs::read_to_string(kept.join(format!("data/step/rank.{rank}")));
        assert_eq!(
            state.expect("kept"),
            format!("state of rank {rank} of {ranks}\n")
        );
        assert_eq!(
            fs::read_to_string(kept.join("name")).expect("kept"),
            "first again"
        );
        assert!(!kept.join("data/left-over").exists());
    }
    mover.restart();
    ended(start("again", Some(&mover), work.path()));
    mover.refuse("made by 8 ranks");
    ended(start("refused", Some(&mover), work.path()));
}

/// One process of a program.
fn process(program: &Path, part: &str, mover: Option<&Mover>, work: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(part).current_dir(work).stderr(Stdio::piped());
    for name in ["SLURM_STEP_ID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK"] {
        command.env_remove(name);
    }
    match mover {
        Some(mover) => command.env("GPUOS_CHECKPOINT_DIR", mover.path()),
        None => command.env_remove("GPUOS_CHECKPOINT_DIR"),
    };
    command
}

#[test]
fn each_function_does_what_the_header_says() {
    if !here("cc") {
        return;
    }
    let folder = library();
    let program = compile("cc", folder.path(), &[], &[source("each.c")], "each");
    each(1, |part, mover, work| {
        vec![
            process(&program, part, mover, work)
                .spawn()
                .expect("starts"),
        ]
    });
}

/// A folder with the library, a stand-in for MPI and a program of four ranks.
fn with_stand_in(flags: &[&str]) -> (TempDir, PathBuf) {
    let folder = library();
    let mpi = format!("-I{}", source("mpi").display());
    compile(
        "cc",
        folder.path(),
        flags,
        &[source("mpi/mpi.c")],
        "libmpi.so",
    );
    let flags = [flags, &["-DWITH_MPI", &mpi]].concat();
    let object = folder.path().join("libmpi.so");
    let program = compile(
        "cc",
        folder.path(),
        &flags,
        &[source("each.c"), object],
        "each",
    );
    (folder, program)
}

fn four_ranks(flags: &[&str]) {
    if !here("cc") {
        return;
    }
    let (folder, program) = with_stand_in(flags);
    each(4, |part, mover, work| {
        let meeting = folder.path().join(part);
        let start = |rank: u16| {
            let mut command = process(&program, part, mover, work);
            command
                .env("FAKE_MPI", &meeting)
                .env("FAKE_RANK", rank.to_string())
                .env("FAKE_SIZE", "4");
            command.spawn().expect("starts")
        };
        (0..4).map(start).collect()
    });
}

#[test]
fn four_ranks_agree_where_handles_are_pointers() {
    four_ranks(&[]);
}

#[test]
fn four_ranks_agree_where_handles_are_numbers() {
    four_ranks(&["-DNUMBERS"]);
}

#[test]
fn four_ranks_agree_by_open_mpi() {
    four_ranks_by_mpi("mpicc.openmpi", "mpirun.openmpi");
}

#[test]
fn four_ranks_agree_by_mpich() {
    four_ranks_by_mpi("mpicc.mpich", "mpirun.mpich");
}

/// By whatever is called `mpicc` here, where names are not Debian's.
#[test]
fn four_ranks_agree_by_the_mpi_that_is_installed() {
    if ["mpicc.openmpi", "mpicc.mpich"].into_iter().any(here) {
        return;
    }
    four_ranks_by_mpi("mpicc", "mpirun");
}

/// Under an MPI itself, with its own compiler and launcher.
fn four_ranks_by_mpi(compiler: &str, launcher: &str) {
    if !here(compiler) || !here(launcher) {
        return;
    }
    let folder = library();
    let program = compile(
        compiler,
        folder.path(),
        &["-DWITH_MPI"],
        &[source("each.c")],
        "each",
    );
    each(4, |part, mover, work| {
        let one = process(&program, part, mover, work);
        let mut command = Command::new(launcher);
        command
            .args(["-n", "4"])
            .current_dir(work)
            .stderr(Stdio::piped());
        // Open MPI wants to be told that it may run as root, and on fewer cores than ranks.
        for name in [
            "OMPI_ALLOW_RUN_AS_ROOT",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
            "OMPI_MCA_rmaps_base_oversubscribe",
        ] {
            command.env(name, "1");
        }
        for (name, value) in one.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.arg(one.get_program()).args(one.get_args());
        vec![command.spawn().expect("starts")]
    });
}

/// A program of four ranks by the stand-in, with these variables, to its end: what its ranks said.
fn by_stand_in(
    (folder, program): (&Path, &Path),
    part: &str,
    (mover, work): (&Mover, &Path),
    variables: &[(&str, &str)],
    meanwhile: impl FnOnce(),
) -> String {
    let meeting = tempfile::tempdir_in(folder).expect("a folder");
    let start = |rank: u16| {
        let mut command = process(program, part, Some(mover), work);
        command
            .env("FAKE_MPI", meeting.path().join("meeting"))
            .env("FAKE_RANK", rank.to_string())
            .env("FAKE_SIZE", "4")
            .envs(variables.iter().copied());
        command.spawn().expect("starts")
    };
    let programs: Vec<Child> = (0..4).map(start).collect();
    meanwhile();
    let mut said = String::new();
    for program in programs {
        let out = program.wait_with_output().expect("ends");
        finished(&out);
        said += &String::from_utf8_lossy(&out.stderr);
    }
    said
}

/// As MPI-IO and parallel HDF5 write: one file of all ranks, each its own part.
#[test]
fn files_that_ranks_share_are_kept_and_come_back() {
    if !here("cc") {
        return;
    }
    let (folder, program) = with_stand_in(&[]);
    let (of, work) = (
        (folder.path(), &*program),
        tempfile::tempdir().expect("a folder"),
    );
    let mover = Mover::start();
    let at = (&mover, work.path());
    let shares = [("SCR_CACHE_BYPASS", "1")];
    let saves = || {
        mover.ended(mover.ask("interval")).expect("committed");
    };
    let said = by_stand_in(of, "shared", at, &shares, saves);
    assert_eq!(said, "");
    // It is output, too, and nothing of the way there is left.
    let output = fs::read(work.path().join("all/together")).expect("output");
    assert_eq!(output.len(), 4 * 5000);
    let left = || {
        let entries = fs::read_dir(work.path()).expect("read").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(".gpuos")).count()
    };
    assert_eq!(left(), 0);
    // Each rank's part of it is kept.
    fs::remove_dir_all(work.path().join("all")).expect("removed");
    mover.restart();
    let said = by_stand_in(of, "shared-again", at, &[], || {});
    let goes_on = "gpuos: the program goes on from checkpoint 1\n";
    assert_eq!((said.as_str(), left()), (goes_on, 0));
}

#[test]
fn ranks_that_seem_to_share_a_file_are_told_how() {
    if !here("cc") {
        return;
    }
    let (folder, program) = with_stand_in(&[]);
    let work = tempfile::tempdir().expect("a folder");
    let mover = Mover::start();
    let at = (&mover, work.path());
    let said = by_stand_in((folder.path(), &program), "apart", at, &[], || {
        mover.ask("interval");
    });
    assert!(
        said.contains("all ranks have named all/together") && said.contains("SCR_CACHE_BYPASS=1"),
        "{said}"
    );
}

#[test]
fn settings_act_or_are_refused_or_named() {
    if !here("cc") {
        return;
    }
    let (folder, program) = with_stand_in(&[]);
    let of = (folder.path(), &*program);
    let work = tempfile::tempdir().expect("a folder");
    let mover = Mover::start();
    let at = (&mover, work.path());
    let said = by_stand_in(of, "disabled", at, &[("SCR_ENABLE", "0")], || {});
    assert!(
        said.contains("SCR_ENABLE=0: the program runs without"),
        "{said}"
    );
    let with = [("SCR_CACHE_BYPASS", "1"), ("SCR_FLUSH", "10")];
    let said = by_stand_in(of, "shared", at, &with, || {
        mover.ended(mover.ask("interval")).expect("committed");
    });
    // By one rank, once.
    assert_eq!(
        said.matches("SCR_FLUSH (the environment) have no effect")
            .count(),
        1,
        "{said}"
    );
    let conf = work.path().join("conf");
    fs::write(&conf, "# mine\nSCR_FETCH=0\n").expect("written");
    let named = conf.display().to_string();
    mover.restart();
    let said = by_stand_in(of, "anew", at, &[("SCR_CONF_FILE", &named)], || {});
    assert!(
        said.contains("SCR_FETCH=0: the program begins anew"),
        "{said}"
    );
    // It is there still.
    mover.restart();
    by_stand_in(of, "shared-again", at, &[("SCR_CURRENT", "all")], || {});
    for (variable, value, wanted) in [
        (
            "SCR_CURRENT",
            "step-3",
            "the one to go on from is all. Take the setting away",
        ),
        (
            "SCR_HALT_SECONDS",
            "600",
            "SCR_HALT_SECONDS=600 (the environment) cannot be done here",
        ),
        (
            "SCR_CONF_FILE",
            "/none/scr.conf",
            "cannot read the settings of /none/scr.conf",
        ),
    ] {
        mover.restart();
        let said = by_stand_in(of, "refused", at, &[(variable, value)], || {});
        assert!(said.contains(wanted), "{variable}: {said}");
    }
}

#[test]
fn what_ranks_cannot_agree_by_is_said() {
    if !here("cc") {
        return;
    }
    let folder = library();
    let program = compile("cc", folder.path(), &[], &[source("each.c")], "each");
    let mover = Mover::start();
    let out = process(&program, "refused", Some(&mover), folder.path())
        .env("RANK", "1")
        .env("WORLD_SIZE", "4")
        .output()
        .expect("starts");
    finished(&out);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        said.contains("libscr: this is rank 1 of 4, and there is no MPI"),
        "{said}"
    );

    let (folder, program) = with_stand_in(&["-DNUMBERS"]);
    let out = process(&program, "refused", Some(&mover), folder.path())
        .env("FAKE_MPI", folder.path().join("meeting"))
        .env("FAKE_RANK", "0")
        .env("FAKE_SIZE", "1")
        .env("FAKE_VERSION", "Some MPI 7")
        .output()
        .expect("starts");
    finished(&out);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("this one is \"Some MPI 7\""), "{said}");
}

#[test]
fn a_node_without_checkpoints_leaves_all_ranks_without() {
    if !here("cc") {
        return;
    }
    let folder = library();
    let mpi = format!("-I{}", source("mpi").display());
    compile(
        "cc",
        folder.path(),
        &[],
        &[source("mpi/mpi.c")],
        "libmpi.so",
    );
    let object = folder.path().join("libmpi.so");
    let counter = root().join("examples/checkpoint/counter-scr.c");
    let program = compile(
        "cc",
        folder.path(),
        &["-DWITH_MPI", &mpi],
        &[counter, object],
        "counter",
    );
    let mover = Mover::start();
    let start = |rank: &str, mover: Option<&Mover>| {
        let mut command = process(&program, "20", mover, folder.path());
        command.arg("1").stdout(Stdio::piped());
        command
            .env("FAKE_MPI", folder.path().join("meeting"))
            .env("FAKE_RANK", rank)
            .env("FAKE_SIZE", "2");
        command.spawn().expect("starts")
    };
    let programs = [start("0", Some(&mover)), start("1", None)];
    let [one, other] = programs.map(|program| program.wait_with_output().expect("ends"));
    for out in [&one, &other] {
        finished(out);
        assert_eq!(String::from_utf8_lossy(&out.stdout), "new\ndone at 20\n");
    }
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(said.contains("goes on without checkpoints"), "{said}");
}

#[test]
fn the_example_counts_on() {
    if !here("cc") {
        return;
    }
    let folder = library();
    let counter = root().join("examples/checkpoint/counter-scr.c");
    let program = compile("cc", folder.path(), &[], &[counter], "counter");
    let start = || {
        let mut command = Command::new(&program);
        command.args(["1000000", "1"]);
        command
    };
    let mover = Mover::start();
    let run = || {
        let mut command = start();
        let command = command
            .env("GPUOS_CHECKPOINT_DIR", mover.path())
            .stdout(Stdio::piped());
        command.spawn().expect("starts")
    };
    let saved = |number| fs::read_to_string(mover.kept(number, 0).join("name")).expect("kept");
    let ends = |program: Child| {
        let out = program.wait_with_output().expect("ends");
        finished(&out);
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let program = run();
    mover.ended(mover.ask("interval")).expect("committed");
    mover.ended(mover.ask("end")).expect("committed");
    let out = ends(program);
    let [first, last] = [saved(1), saved(2)].map(|name| name.replace("count.", ""));
    assert_eq!(
        out,
        format!("new\nsaved count.{first} at {first}\nsaved count.{last} at {last}\n")
    );
    mover.restart();
    let program = run();
    mover.ended(mover.ask("end")).expect("committed");
    let out = ends(program);
    assert!(
        out.starts_with(&format!("restored count.{last} at {last}\n")),
        "{out}"
    );
}
