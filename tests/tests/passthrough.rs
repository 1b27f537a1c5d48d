//! What gpuos does when something is wrong: slurmctld lives, schedules as stock Slurm does, and its
//! log says why. On every release, with the same plugins.

use std::fs;
use std::path::{Path, PathBuf};

use gpuos_lab::{Select, Suite};
use gpuos_tests::{Cluster, Setup, per_suite, plugins, skip};

per_suite!(wrong_tables, panics);

/// slurmctld has just been started: it passes through and says `why`; jobs get GPUs as always.
fn passes_through(cluster: &Cluster, from: usize, why: &[&str]) {
    let job = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
    let log = cluster.lab.slurmctld_log().split_off(from);
    for part in why {
        assert!(
            log.contains(part),
            "{part:?} is not in the log:\n{}",
            cluster.report("select/gpuos")
        );
    }
    assert!(log.contains("pass"), "{log}");
    assert_eq!(cluster.gpus(job)["n1"].len(), 2);
    assert_eq!(cluster.note(job), None, "a job was steered");
    counts_hold(cluster, job);
}

/// Beside a job with two GPUs on n1: others fit exactly, waiting jobs start when they can, and at the
/// end all is free.
fn counts_hold(cluster: &Cluster, job: u32) {
    let rest = cluster.start(&["--gres=gpu:6", "-w", "n1"]);
    let waits = cluster.sbatch(&["--gres=gpu:1", "-w", "n1"], "sleep 600");
    let wide = cluster.start(&["-N1", "--gpus-per-node=8"]);
    assert!(cluster.gpus(wide).contains_key("n2"));
    let used = cluster.used();
    assert_eq!((used["n1"].gpus, used["n2"].gpus), (8, 8));
    assert_eq!(cluster.lab.job_state(waits).expect("known"), "PENDING");
    cluster.cancel(&[job, rest]);
    cluster.wait(waits, &["RUNNING"]);
    assert_eq!(cluster.used()["n1"].gpus, 1);
    cluster.drained();
}

/// slurmctld has just been started and steers.
fn steers(cluster: &Cluster) {
    let job = cluster.start(&["--gres=gpu:2"]);
    cluster.planned(job);
    cluster.cancel(&[job]);
}

fn wrong_tables(suite: &Suite) {
    let Some(mut cluster) = Setup::new("tables", suite).steered() else {
        return;
    };
    cluster.expects_errors = true;
    let version = cluster.lab.version().to_string();
    steers(&cluster);
    broken_toml(&cluster);
    let site = |cluster: &Cluster, text: &str, why: &[&str]| {
        let from = cluster.lab.slurmctld_log().len();
        cluster
            .lab
            .write_conf("gpuos-layouts.tsv", text)
            .expect("writes");
        cluster.restart_slurmctld();
        passes_through(cluster, from, why);
    };
    site(
        &cluster,
        "job_record\tjob_id\tmany\t4\n",
        &["gpuos-layouts.tsv: line 1 is damaged"],
    );
    site(
        &cluster,
        &format!("job_record\tjob_id\t448\t4\tuint32_t\t{version}\t{version}\n"),
        &["has no offset of"],
    );
    // Rows of other releases, said to be this one's: nothing in them looks wrong.
    for other in ["22.05.8", "24.11.3", "26.05.3"] {
        if other != version {
            let rows = rows_of(other, &version);
            let from = cluster.lab.slurmctld_log().len();
            cluster
                .lab
                .write_conf("gpuos-layouts.tsv", &rows)
                .expect("writes");
            cluster.restart_slurmctld();
            refused_or_right(&cluster, from, other);
        }
    }
    let file = cluster.lab.dir().join("etc/gpuos-layouts.tsv");
    fs::remove_file(&file).expect("removes");
    unknown_release(&mut cluster, &version);
}

/// The rows that the table has for a release, as rows for another one.
fn rows_of(release: &str, version: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/slurm_ffi/data/layouts.tsv");
    let table = fs::read_to_string(path).expect("the table");
    let number = |text: &str| -> Vec<u32> {
        let parts = text.split('.').map(|part| part.parse().unwrap_or(0));
        parts.collect()
    };
    let wanted = number(release);
    let mut rows = String::new();
    for line in table.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        if let [a, b, c, d, e, first, last] = columns[..]
            && number(first) <= wanted
            && wanted <= number(last)
        {
            rows += &format!("{a}\t{b}\t{c}\t{d}\t{e}\t{version}\t{version}\n");
        }
    }
    assert!(rows.lines().count() > 100, "no rows for {release}");
    rows
}

/// A table of another release: refused by the self-check, or the same in all that is used, and then
/// the job is steered as planned.
fn refused_or_right(cluster: &Cluster, from: usize, other: &str) {
    let job = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
    let log = cluster.lab.slurmctld_log().split_off(from);
    if log.contains("passing through to cons_tres") {
        assert!(
            log.contains("does not fit this slurmctld"),
            "{other}: {log}"
        );
        assert_eq!(cluster.note(job), None, "{other}");
        eprintln!("rows of {other}: refused");
    } else {
        cluster.planned(job);
        eprintln!("rows of {other}: fit");
    }
    assert_eq!(cluster.gpus(job)["n1"].len(), 2);
    cluster.drained();
}

/// gpuos.toml with an error: one line with its place; mended and read again, gpuos steers.
fn broken_toml(cluster: &Cluster) {
    for (text, why) in [
        ("[slurm]\nsteer = 7\n", "gpuos.toml:2:"),
        ("[slurm\n", "gpuos.toml:1:"),
        ("[slurm]\nster = true\n", "gpuos.toml:2:"),
    ] {
        let from = cluster.lab.slurmctld_log().len();
        cluster.lab.write_conf("gpuos.toml", text).expect("writes");
        cluster.restart_slurmctld();
        passes_through(cluster, from, &[why]);
    }
    cluster
        .lab
        .write_conf("gpuos.toml", "[slurm]\nsteer = true\n")
        .expect("writes");
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    steers(cluster);
    // And the other way round: a file that breaks while slurmctld runs.
    let from = cluster.lab.slurmctld_log().len();
    cluster.lab.write_conf("gpuos.toml", "x").expect("writes");
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    passes_through(cluster, from, &["gpuos.toml:1:"]);
    cluster.lab.write_conf("gpuos.toml", "").expect("writes");
}

/// A plugin from before this release of Slurm: its table has every release but this one.
fn unknown_release(cluster: &mut Cluster, version: &str) {
    let dir = cluster.lab.dir().join("work/older");
    fs::create_dir_all(&dir).expect("makes a folder");
    for name in ["libselect_gpuos.so", "libspank_gpuos.so"] {
        let mut bytes = fs::read(plugins::built().join(name)).expect("a plugin");
        if name.contains("select") {
            forget(&mut bytes, version);
        }
        fs::write(dir.join(name), bytes).expect("writes");
    }
    let select = |plugin_dir: PathBuf| Select::Gpuos {
        plugin_dir,
        own_dir: true,
    };
    cluster.lab.set_select(select(dir)).expect("selects");
    let from = cluster.lab.slurmctld_log().len();
    cluster.lab.restart().expect("restarts");
    let line = format!("Slurm {version} is not in the layout table");
    passes_through(cluster, from, &[&line, "gpuos layout"]);
    // A row made by the site is as good as a built-in one.
    if version != "26.05.5" {
        let rows = rows_of(version, version);
        let file = "gpuos-layouts.tsv";
        cluster.lab.write_conf(file, &rows).expect("writes");
        cluster.restart_slurmctld();
        steers(cluster);
        cluster.drained();
    }
}

/// Changes the built-in list of releases so that `version` does not stand in it.
fn forget(bytes: &mut [u8], version: &str) {
    let mut found = 0;
    for end in ["\n", "\t"] {
        let name = format!("\n{version}{end}").into_bytes();
        for at in 0..bytes.len() - name.len() {
            if bytes[at..].starts_with(&name) {
                // Another name of the same length that no release has.
                bytes[at + 1..at + 3].copy_from_slice(b"99");
                found += 1;
            }
        }
    }
    assert!(found > 0, "{version} was not in the plugin");
}

fn panics(suite: &Suite) {
    let mut setup = Setup::new("panics", suite);
    setup.spec.select = Select::Gpuos {
        plugin_dir: plugins::with_faults().to_path_buf(),
        own_dir: true,
    };
    // The other plugins have no such build.
    setup.spec.spank = false;
    setup.spec.slurm_conf_extra[0] += ",permit_job_expansion";
    let Some(mut cluster) = setup.steered() else {
        return;
    };
    cluster.expects_errors = true;
    for symbol in [
        "constructor",
        "init",
        "select_p_node_init",
        "select_p_reconfigure",
        "select_p_job_test",
        "job_test.masked",
        "job_test.cores",
        "select_p_select_nodeinfo_set",
        "select_p_job_fini",
        "select_p_job_resized",
        "select_p_job_expand",
    ] {
        let from = cluster.lab.slurmctld_log().len();
        cluster.lab.set_slurmctld_env(&[("GPUOS_PANIC_AT", symbol)]);
        cluster.lab.kill_slurmctld(15).expect("ends");
        if let Err(e) = cluster.lab.start_slurmctld() {
            panic!("slurmctld did not survive a panic in {symbol}: {e}");
        }
        cluster.ready();
        let pid = cluster.lab.slurmctld_pid();
        let reached = provoke(&cluster, symbol);
        let log = cluster.lab.slurmctld_log().split_off(from);
        if reached {
            assert!(
                log.contains("internal error in") && log.contains("injected"),
                "{symbol}: no line in the log{}",
                cluster.report("gpuos")
            );
            let job = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
            assert_eq!(cluster.note(job), None, "steered after a panic in {symbol}");
            counts_hold(&cluster, job);
        }
        assert_eq!(cluster.lab.slurmctld_pid(), pid, "{symbol}");
    }
    cluster.lab.set_slurmctld_env(&[]);
    cluster.restart_slurmctld();
    steers(&cluster);
    cluster.drained();
}

/// Does what makes slurmctld call the entry; false where this release does not let us.
fn provoke(cluster: &Cluster, symbol: &str) -> bool {
    match symbol {
        "select_p_job_resized" => {
            let job = cluster.start(&["-N2", "--gpus-per-node=2"]);
            let id = format!("JobId={job}");
            let done = cluster.try_run("scontrol", &["update", &id, "NumNodes=1"]);
            cluster.drained();
            reached(symbol, done)
        }
        // There stock slurmctld ends by it: it looks for licences in the list of a job that has none.
        "select_p_job_expand"
            if !cluster.is_before([25, 11, 0]) && cluster.is_before([26, 5, 4]) =>
        {
            skip(
                symbol,
                "stock Slurm 25.11.0 to 26.05.3 ends by an expansion",
            );
            false
        }
        "select_p_job_expand" => {
            let first = cluster.start(&["-N1", "-w", "n1"]);
            // Without a step of its own, or it may not give its node away.
            let depends = format!("--dependency=expand:{first}");
            let args = ["--no-shell", &depends, "-N1", "-w", "n2", "-J", "second"];
            let done = cluster.try_run("salloc", &args).and_then(|_| {
                let id = cluster.run("squeue", &["-h", "-n", "second", "-o", "%i"]);
                let id = format!("JobId={}", id.trim());
                cluster.try_run("scontrol", &["update", &id, "NumNodes=0"])
            });
            cluster.drained();
            reached(symbol, done)
        }
        "select_p_reconfigure" => {
            cluster.lab.reconfigure().expect("reconfigures");
            cluster.ready();
            true
        }
        // Hidden from releases that would waste their time on them.
        "job_test.cores" if cluster.lab.version() >= "24.05" => false,
        "job_test.cores" => {
            cluster.start(&["-n1", "--gres=gpu:3"]);
            cluster.drained();
            // All of them are in sight again.
            cluster.start(&["-c64", "-w", "n1"]);
            cluster.drained();
            true
        }
        _ => {
            // Steered, started, ended.
            let job = cluster.start(&["--gres=gpu:3"]);
            assert_eq!(cluster.gpus(job).values().map(Vec::len).sum::<usize>(), 3);
            cluster.drained();
            true
        }
    }
}

fn reached(symbol: &str, done: Result<String, String>) -> bool {
    if let Err(why) = &done {
        skip(symbol, why);
    }
    done.is_ok()
}
