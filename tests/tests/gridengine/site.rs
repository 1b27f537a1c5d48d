//! A site with scripts of its own: gpuos calls them, users change their jobs as before, and after `setup.sh --remove` all is as it was.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use gpuos_tests::costs;

use super::lab::{Grid, HOSTS, packages};

const SETUP: &str = "sh /usr/share/gpuos/gridengine/setup.sh";

/// Changes of a job that waits; each is a form that qalter takes where no verifier is set.
const CHANGES: [&str; 29] = [
    "-a 203001010000",
    "-A account",
    "-ac one=1",
    "-dc one",
    "-c n",
    "-ckpt gpuos",
    "-e /dev/null",
    "-o /dev/null",
    "-i /dev/null",
    "-h u",
    "-j y",
    "-js 5",
    "-l mem_free=1M",
    "-soft -l mem_free=2M",
    "-m e",
    "-M a@b.example",
    "-N name",
    "-notify",
    "-p -10",
    "-pe smp 2",
    "-q gpu.q",
    "-masterq gpu.q",
    "-r y",
    "-R y",
    "-S /bin/sh",
    "-v A=1",
    "-V",
    "-w n",
    "-binding linear:1",
];

#[test]
fn a_sites_own_scripts_are_called_and_all_comes_back() {
    let Some(packages) = packages("Grid Engine: a site's own scripts") else {
        return;
    };
    let _cost = costs::of("slurm::gridengine::site");
    let grid = Grid::up(&packages);
    remove(&grid);
    let plain = changes(&grid, "-h");
    let taken = plain.iter().filter(|(_, taken)| *taken).count();
    assert!(taken >= 24, "{plain:?}");
    configure(&grid);
    let before = configuration(&grid);
    // Nothing is replaced without a word.
    fs::write(grid.dir.join("work/jsv"), "#!/bin/sh\n").expect("a script");
    make_executable(&grid, "jsv");
    let own = format!("script:{}/work/jsv", grid.dir.display());
    set_global(&grid, &format!("s,^jsv_url .*,jsv_url {own},"));
    let said = grid.sh("head", "root", &format!("{SETUP} gpu.q /mnt/saves"));
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        !said.status.success() && words.contains(&own) && words.contains("Nothing was changed"),
        "{said:?}"
    );
    set_global(&grid, "s,^jsv_url .*,jsv_url none,");
    assert_eq!(configuration(&grid), before);
    // Run again, and with the other of the two, it still has the site's own called.
    for saves in ["--store", "/mnt/saves", "--store", "/mnt/saves"] {
        grid.ok("head", "root", &format!("{SETUP} gpu.q {saves}"));
    }
    for host in HOSTS {
        let line = format!("qconf -aattr exechost complex_values gpu=8 {host}");
        grid.ok("head", "root", &line);
    }
    grid.until("the hosts report", |grid| {
        let text = grid.ok("head", "root", "qhost -F gpuos_free");
        text.matches("gpuos_free=8").count() == HOSTS.len()
    });
    calls(&grid);
    for (form, taken) in changes(&grid, "-h -l gpu=1") {
        let stock = plain.iter().find(|(of, _)| *of == form).expect("a form");
        assert!(taken || !stock.1, "qalter {form}");
    }
    grid.until("all jobs end", Grid::is_idle);
    remove(&grid);
    assert_eq!(configuration(&grid), before);
    // Without a prolog of the cluster's, a host's entry ends with the site's starter.
    set_global(&grid, "s,^prolog .*,prolog none,");
    let before = configuration(&grid);
    for _ in 0..2 {
        grid.ok("head", "root", &format!("{SETUP} gpu.q /mnt/saves"));
    }
    remove(&grid);
    assert_eq!(configuration(&grid), before);
}

fn remove(grid: &Grid) {
    let said = grid.ok("head", "root", &format!("{SETUP} --remove 2>&1"));
    assert!(
        said.ends_with("gpuos is out of this Grid Engine.\n"),
        "{said}"
    );
}

/// All that setup.sh may touch, as qconf prints it; without what hosts report.
fn configuration(grid: &Grid) -> String {
    let all = [
        "-sconf",
        "-sc",
        "-sq gpu.q",
        "-sckptl",
        "-sel",
        "-se n1",
        "-se n2",
        "-se global",
    ];
    let line = |what: &str| format!("echo '== {what}'; qconf {what} 2>&1 | grep -v ^load_values; ");
    let script: String = all.into_iter().map(line).collect();
    grid.ok(
        "head",
        "root",
        &format!("SGE_SINGLE_LINE=1; export SGE_SINGLE_LINE; {script}:"),
    )
}

fn make_executable(grid: &Grid, name: &str) {
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(grid.dir.join("work").join(name), mode).expect("a mode");
}

fn set_global(grid: &Grid, edit: &str) {
    let line = format!(
        "qconf -sconf | grep -v '^#' | sed -e '{edit}' >/run/global && cd /run && qconf -Mconf global"
    );
    grid.ok("head", "root", &line);
}

/// What a site may have: another prolog on one host, one for the whole cluster, sensors, and a starter.
fn configure(grid: &Grid) {
    let work = grid.dir.join("work");
    let shown = work.display();
    let note = format!(
        "#!/bin/sh\necho \"$(id -un) $(id -gn) $* job=$JOB_ID user=$USER path=$PATH own=$job\" >>{shown}/$1.log\nchmod 666 {shown}/$1.log 2>/dev/null\n[ ! -e {shown}/$1.code ] || exit $(cat {shown}/$1.code)\n"
    );
    let starter = format!(
        "#!/bin/sh\necho \"starts $*\" >>{shown}/starter.log\nexec \"$SGE_STARTER_SHELL_PATH\" \"$@\"\n"
    );
    for (name, text) in [("note", &note), ("start", &starter), ("sense", &"#!/bin/sh\nwhile read -r w; do [ \"$w\" != quit ] || exit 0; echo begin; echo end; done\n".to_string())] {
        fs::write(work.join(name), text).expect("a script");
        make_executable(grid, name);
    }
    for (name, value) in [
        (
            "prolog",
            format!("{shown}/note pro $host $job_owner,[n2=NONE]"),
        ),
        ("epilog", format!("bob@{shown}/note epi $job_id")),
        ("starter_method", format!("{shown}/start")),
    ] {
        let line = format!("qconf -mattr queue {name} '{value}' gpu.q");
        grid.ok("head", "root", &line);
    }
    set_global(
        grid,
        &format!(
            "s,^load_sensor .*,load_sensor {shown}/sense,;s,^prolog .*,prolog bob@{shown}/note all,;/^jsv_allowed_mod /d"
        ),
    );
}

/// The site's own are called as Grid Engine would call them.
fn calls(grid: &Grid) {
    let work = grid.dir.join("work");
    let log = |name: &str| fs::read_to_string(work.join(format!("{name}.log"))).unwrap_or_default();
    let tell = "echo $(hostname) $CUDA_VISIBLE_DEVICES";
    let one = grid.qsub("alice", "-l gpu=2,h=n1 -v job=mine", tell);
    grid.until("the job ends", |grid| grid.is_gone(&one));
    assert_eq!(grid.written("alice", &one), "n1 0,1\n");
    let pro = log("pro");
    assert!(
        pro.starts_with(&format!(
            "alice alice pro n1 alice job={one} user=alice path=/mnt/tmp/{one}.1.gpu.q:"
        )) && pro.ends_with(" own=mine\n"),
        "{pro}"
    );
    let epi = log("epi");
    assert!(
        epi.starts_with(&format!("bob bob epi {one} job={one} user=alice ")),
        "{epi}"
    );
    assert!(log("starter").contains("starts "), "{}", log("starter"));
    // Where the queue has none on a host, the cluster's is that host's.
    let two = grid.qsub("alice", "-l gpu=1,h=n2", tell);
    grid.until("the job ends", |grid| grid.is_gone(&two));
    assert!(
        log("all").starts_with(&format!("bob bob all job={two} ")),
        "{}",
        log("all")
    );
    // Its code is the prolog's: 100 puts the job into the error state.
    fs::write(work.join("pro.code"), "100").expect("a file");
    let three = grid.qsub("alice", "-l gpu=1,h=n1", tell);
    grid.until("the job is wrong", |grid| {
        grid.ok("head", "root", "qstat -u '*'").contains(" Eqw ")
    });
    fs::remove_file(work.join("pro.code")).expect("a file");
    grid.ok("head", "root", &format!("qdel {three}"));
    // That of an epilog does not keep GPUs.
    fs::write(work.join("epi.code"), "100").expect("a file");
    let four = grid.qsub("alice", "-l gpu=1,h=n1", tell);
    grid.until("the job has ended", |grid| {
        let told = grid.ok("head", "root", "qstat -u '*'");
        !told.contains(" r ")
            && grid.held("n1").is_empty()
            && !grid.written("alice", &four).is_empty()
    });
    fs::remove_file(work.join("epi.code")).expect("a file");
    grid.sh("head", "root", &format!("qdel {four}; qmod -cq gpu.q"));
    grid.until("it is gone", |grid| grid.is_gone(&four));
}

/// Which changes of a job of alice's are taken.
fn changes(grid: &Grid, options: &str) -> Vec<(&'static str, bool)> {
    let mut all = Vec::new();
    for form in CHANGES {
        let job = grid.qsub("alice", options, "true");
        let said = grid.sh("head", "alice", &format!("qalter {form} {job}"));
        let words = String::from_utf8_lossy(&said.stdout).into_owned()
            + &String::from_utf8_lossy(&said.stderr);
        let refused =
            words.contains("denied") || words.contains("not allowed") || words.contains("rejected");
        all.push((form, said.status.success() && !refused));
        grid.ok("head", "alice", &format!("qdel {job}"));
    }
    all
}
