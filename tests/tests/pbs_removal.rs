//! `gpuos pbs remove` while jobs run and some end at that moment, and `gpuos pbs install` again, on a PBS: jobs go on, and no daemon of PBS ends.

use std::collections::BTreeMap;
use std::fs;
use std::thread::{scope, sleep};
use std::time::Duration;

use gpuos_lab::pbs::{HEAD_DAEMONS, MOM};
use gpuos_tests::{costs, pbs};

use crate::pbs_full::{Full, LIMIT, SLICE, WHOLE};
use crate::pbs_site::{gpuos, ran, reaches};

/// Jobs that end around the moment at which the hook goes.
const ENDING: usize = 6;

impl Full {
    /// The daemons of PBS with their pids.
    pub fn pids(&self) -> BTreeMap<String, Option<u32>> {
        let head = HEAD_DAEMONS.map(|daemon| ("head", daemon));
        let moms = self.hosts.iter().map(|host| (&host[..], MOM));
        let all = head.into_iter().chain(moms);
        all.map(|(host, daemon)| (format!("{daemon} of {host}"), self.lab.pid(host, daemon)))
            .collect()
    }

    /// What pbs_server shows of hosts, and pbs_sched's configuration, but for times and what jobs have had.
    pub fn shown(&self) -> String {
        let text = ran(self.lab.run("pbsnodes", &["-av"]));
        let stays = |line: &&str| {
            let line = line.trim();
            !line.starts_with("last_") && !line.starts_with("resources_assigned.")
        };
        let hosts: Vec<&str> = text.lines().filter(stays).collect();
        let config = self.lab.home("head").join("sched_priv/sched_config");
        format!(
            "{}\n{}",
            hosts.join("\n"),
            fs::read_to_string(config).unwrap()
        )
    }

    /// Resources of gpuos that pbs_server knows.
    fn resources(&self) -> Vec<String> {
        let text = ran(self.lab.run("qmgr", &["-c", "list resource"]));
        let names = text
            .lines()
            .filter_map(|line| line.strip_prefix("Resource "));
        let ours = names
            .map(str::trim)
            .filter(|name| name.starts_with("gpuos_"));
        ours.map(String::from).collect()
    }

    fn has_hook_in_server(&self) -> bool {
        let text = ran(self.lab.run("qmgr", &["-c", "list hook"]));
        text.lines().any(|line| line.trim() == "Hook gpuos")
    }
}

#[test]
fn jobs_and_daemons_go_on_when_the_hook_is_removed_while_jobs_end() {
    let Some(prefix) = pbs("gpuos pbs remove under jobs") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_removal");
    let site = Full::up(&prefix, "pbs-removal");
    let before = site.before.clone();
    let beats = |job: &str| {
        let text = fs::read_to_string(site.work.join(format!("{job}.beats")));
        text.unwrap_or_default().lines().count()
    };
    let work = site.work.display();
    let beat = format!(
        "while [ ! -e {work}/$PBS_JOBID.end ]; do echo $CUDA_VISIBLE_DEVICES >>{work}/$PBS_JOBID.beats; sleep 0.1; done\n"
    );
    let limited = [&WHOLE[..], &["-l", "gpuos_power=300W"]].concat();
    let kinds = [&SLICE[..], &limited, &WHOLE];
    let stay: Vec<String> = kinds
        .iter()
        .map(|options| site.submit("user1", options, &beat))
        .collect();
    let ending = (0..ENDING).map(|nth| site.submit("user2", kinds[nth % 3], &beat));
    let ending: Vec<String> = ending.collect();
    for job in stay.iter().chain(&ending) {
        site.until("its script runs", || beats(job) > 0);
    }
    // Of jobs with slices it knows the slices.
    let whole = stay[1..].iter().chain(&ending).filter(|job| {
        !site
            .attribute(job, "Resource_List.gpuos_mig")
            .contains("1g")
    });
    for job in whole {
        site.until("gpuosd knows it", || {
            let mut hosts = site.hosts.iter();
            hosts.any(|host| site.known(host).is_some_and(|known| known.contains(job)))
        });
    }
    let pids = site.pids();

    // One after the other ends while qmgr works.
    let end = |job: &String| fs::write(site.work.join(format!("{job}.end")), "").unwrap();
    // What PBS refuses stands beside what was done.
    let remove = || {
        let out = ran(site.lab.output(&gpuos(), &["pbs", "remove"]));
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        eprintln!("gpuos pbs remove: {}\n{said}", out.status);
        (out.status.success(), said)
    };
    let (done, said) = scope(|scope| {
        scope.spawn(|| {
            for job in &ending {
                end(job);
                sleep(Duration::from_millis(120));
            }
        });
        sleep(Duration::from_millis(100));
        remove()
    });
    // Resources that jobs have stay until these have ended, and the command says so.
    assert!(
        !done && said.contains("Run gpuos pbs remove again"),
        "{said}"
    );
    assert!(!site.has_hook_in_server());
    for job in &ending {
        reaches(&site.lab, job, "F", LIMIT);
        assert_eq!(site.attribute(job, "Exit_status"), "0");
    }
    for job in &stay {
        let before = beats(job);
        site.until("it goes on", || beats(job) > before + 5);
        assert_eq!(site.state(job), "R");
        assert_eq!(site.attribute(job, "run_count"), "1");
    }
    assert_eq!(site.pids(), pids);
    let kept = site.hosts.iter().filter(|host| {
        let files = fs::read_dir(site.lab.home(host).join("mom_priv/hooks")).unwrap();
        let mut names = files.map(|file| file.unwrap().file_name());
        names.any(|name| name.to_string_lossy().starts_with("gpuos."))
    });
    eprintln!("{} moms have kept the hook", kept.count());

    // It comes back beneath the jobs that have run all the time, and what the others had is given back.
    site.install();
    site.until("hosts show what is counted again", || {
        let text = site.lab.run("pbsnodes", &["-av"]).unwrap_or_default();
        text.matches("resources_available.gpuos_mig_memory = 8")
            .count()
            == site.hosts.len()
    });
    let next = site.submit("user2", &SLICE, &beat);
    site.until("its script runs", || beats(&next) > 0);
    for job in stay.iter().chain([&next]) {
        end(job);
        reaches(&site.lab, job, "F", LIMIT);
        assert_eq!(site.attribute(job, "Exit_status"), "0");
        assert_eq!(site.attribute(job, "run_count"), "1");
    }
    site.nothing_is_left();
    assert_eq!(site.pids(), pids);

    // With no job of them in the history all of it goes.
    for job in stay.iter().chain(&ending).chain([&next]) {
        ran(site.lab.run("qdel", &["-x", job]));
    }
    assert!(remove().0);
    assert_eq!(site.resources(), Vec::<String>::new());
    assert!(!site.has_hook_in_server());
    assert_eq!(site.shown(), before, "all is as it was before gpuos");
    site.install();
    site.all_free();
    let last = site.submit("user1", &SLICE, "echo $CUDA_VISIBLE_DEVICES\n");
    reaches(&site.lab, &last, "F", LIMIT);
    assert!(site.lab.job_output(&last).starts_with("MIG-"));
    site.nothing_is_left();
    ran(site.lab.down());
}
