//! GPUs that were described and those that PBS counts, what hosts show of them, and what was left over by jobs, planners and gpuosd.

use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::compress;
use gpuos_pbs::hook::event::Host;
use gpuos_pbs::hook::resources::{FORMER, LEAF, NVLINK};
use gpuos_pbs::hook::vnodes::gpu_of;
use gpuos_pbs::state::Site;
use gpuos_pbs::state::nodes::{Host as Found, Vnode};

use super::super::about;
use super::super::findings::Findings;
use super::here::short;
use super::hook::Known;

/// With what comments of gpuos on vnodes begin.
const OURS: &str = "gpuos:";

/// How many vnodes are named in a sentence.
const MOST: usize = 8;

/// How vnodes were shared that gpuos made of GPUs, before PBS counted these on the hosts' own.
const OLD_SHARING: &str = "force_excl";

/// Looks at each host that is described, and at the others.
pub fn check(site: &Site, known: &Known, findings: &mut Findings) {
    let mut well = Vec::new();
    for (name, host) in known.hosts.iter().filter(|(_, host)| !host.gpus.is_empty()) {
        let before = findings.0.len();
        of_host(site, (name, host), findings);
        if findings.0.len() == before {
            well.push(&name[..]);
        }
    }
    let described = |name: &str| known.hosts.keys().any(|one| short(one) == short(name));
    let others = site.nodes.hosts.iter();
    let others = others.filter(|host| host.gpus > 0 && !described(&host.name));
    let others: Vec<&str> = others.map(|host| &host.name[..]).collect();
    if !others.is_empty() {
        findings
            .note(
                about::VNODES,
                format!(
                    "{} have GPUs that are not described to gpuos",
                    compress(others)
                ),
                "describe them to `gpuos pbs install --hosts`, if gpuos is to know them",
            )
            .why("programs there are not told their GPUs by gpuos, and nobody watches these");
    }
    if known.hosts.is_empty() {
        findings
            .warn(
                about::VNODES,
                "no host is described, so that gpuosd chooses no GPUs",
                "`gpuos pbs install --hosts gpus.json`; docs/admin/pbs.md has the form",
            )
            .why("programs are not told their GPUs, and jobs cannot be kept within a leaf switch or an NVLink domain");
    }
    if !well.is_empty() {
        findings.ok(
            about::VNODES,
            format!(
                "PBS counts the GPUs of {} as they are described, and these show which are free",
                compress(well)
            ),
        );
    }
}

fn of_host(site: &Site, (name, host): (&String, &Host), findings: &mut Findings) {
    let mut all = site.nodes.hosts.iter();
    let Some(found) = all.find(|one| short(&one.name) == short(name)) else {
        findings.fail(
            about::VNODES,
            format!("host {name} is described, and PBS has no such host"),
            format!("qmgr -c 'create node {name}', or take it out of what `gpuos pbs install --hosts` is given"),
        );
        return;
    };
    counts(site, (found, host), findings);
    if !host.advise {
        shows(site, (found, host), findings);
    }
    if !found.up {
        let vnodes = site
            .nodes
            .vnodes_of(found)
            .map(|(_, vnode)| &vnode.state[..]);
        findings.warn(
            about::VNODES,
            format!("host {name} is {}", vnodes.collect::<Vec<_>>().join("+")),
            format!("see what its mom says, or `pbsnodes -v {}`", found.name),
        );
    }
}

/// How many GPUs PBS counts, and how many there are.
fn counts(site: &Site, (found, host): (&Found, &Host), findings: &mut Findings) {
    let name = &found.name;
    let vnodes = site.nodes.vnodes_of(found).map(|(_, vnode)| vnode);
    let counted: u64 = vnodes
        .filter(|vnode| !is_old(vnode))
        .map(|vnode| vnode.site_gpus)
        .sum();
    let described = host.gpus.len() as u64;
    let whole = whole(host).len() as u64;
    let set = format!("qmgr -c 'set node {name} resources_available.ngpus = {whole}'");
    if counted > described {
        findings
            .fail(
                about::VNODES,
                format!("PBS counts {counted} GPUs on {name} (ngpus), and {described} are described"),
                format!("{set}, or describe the others in gpus.json and run `gpuos pbs install --hosts`"),
            )
            .why("gpuosd chooses none of those that it does not know, and programs start without their GPUs being named");
    } else if counted < whole {
        findings
            .warn(
                about::VNODES,
                format!("PBS counts {counted} GPUs on {name} (ngpus), and {whole} are described that jobs can have as a whole"),
                set,
            )
            .why("jobs do not get the others");
    }
}

/// The GPUs of a host that are neither shared nor divided.
fn whole(host: &Host) -> GpuSet {
    let gpus = host.gpus.iter().enumerate();
    let whole = gpus.filter(|(_, gpu)| gpu.shares == 0 && gpu.mig.is_none());
    whole.fold(GpuSet::EMPTY, |all, (at, _)| all.with(at))
}

/// Whether gpuosd shows what it knows of a host's GPUs, and knows those that are described.
fn shows(site: &Site, (found, host): (&Found, &Host), findings: &mut Findings) {
    let name = &found.name;
    let Some(shown) = &found.shown else {
        findings
            .warn(
                about::VNODES,
                format!("{name} shows nothing of its GPUs (gpuos_host)"),
                "start gpuosd there (`systemctl start gpuosd`), and see that the hook of its mom is enabled: it tells PBS every few seconds",
            )
            .why("the planner takes the first GPUs for the free ones and knows no links, and nobody chooses the GPUs of a job");
        return;
    };
    if shown.whole != whole(host) {
        findings
            .warn(
                about::VNODES,
                format!(
                    "gpuosd on {name} gives GPU {} as a whole, and {} are described so",
                    shown.whole,
                    whole(host)
                ),
                "run `gpuos pbs install --hosts` with what there is, and restart the mom there, so that it has what was described last",
            )
            .why("which GPUs jobs get there is otherwise than was meant");
    }
    let vnodes = site.nodes.vnodes_of(found).map(|(_, vnode)| vnode);
    let left: u64 = vnodes
        .filter(|vnode| !vnode.out)
        .map(|vnode| vnode.gpus.free())
        .sum();
    if shown.free.len() as u64 != left {
        findings.note(
            about::VNODES,
            format!(
                "{name} shows {} free GPUs, and PBS counts {left}",
                shown.free.len()
            ),
            "that passes within seconds where a job has just started or ended; where it stays, see `gpuos health` there, and whether its mom runs",
        );
    }
}

/// Whether an earlier gpuos has made a vnode, of a GPU.
fn is_old(vnode: &Vnode) -> bool {
    let has = |name: &&str| vnode.resource(name).is_some();
    let of_gpu = vnode.sharing == OLD_SHARING && [LEAF, NVLINK].iter().any(has);
    gpu_of(&vnode.name).is_some() && vnode.site_gpus <= 1 && (of_gpu || FORMER.iter().any(has))
}

/// Names, of which the first are shown.
fn shortened(names: &[&str]) -> String {
    let shown = names[..names.len().min(MOST)].join(" ");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What stays of an earlier installation, or out of service, until somebody does something.
pub fn left_over(site: &Site, findings: &mut Findings) {
    let names = |test: &dyn Fn(&Vnode) -> bool| -> Vec<&str> {
        let vnodes = site.nodes.vnodes.iter().filter(|vnode| test(vnode));
        vnodes.map(|vnode| &vnode.name[..]).collect()
    };
    let busy = names(&|vnode| is_old(vnode) && !vnode.jobs.is_empty());
    if !busy.is_empty() {
        findings.note(
            about::LEFT_OVER,
            format!(
                "{} are vnodes of an earlier gpuos whose jobs still run",
                shortened(&busy)
            ),
            "run `gpuos pbs install` once more when these have ended",
        );
    }
    let idle = names(&|vnode| is_old(vnode) && vnode.jobs.is_empty());
    if !idle.is_empty() {
        findings
            .warn(
                about::LEFT_OVER,
                format!("{} are vnodes of an earlier gpuos", shortened(&idle)),
                "`gpuos pbs install` deletes them",
            )
            .why("their GPUs are counted on the hosts' own vnodes too");
    }
    if busy.is_empty() && idle.is_empty() {
        findings.ok(about::LEFT_OVER, "PBS has no vnodes of an earlier gpuos");
    }
    let out = names(&|vnode| {
        let fewer = vnode.out || vnode.gpus.all < vnode.site_gpus;
        fewer && vnode.comment.starts_with(OURS)
    });
    if !out.is_empty() {
        findings.note(
            about::HEALTH,
            format!("gpuos took GPUs of {} out of service", shortened(&out)),
            "`gpuos health` on the host says why",
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpuos_config::gpuos_toml::Config;
    use gpuos_pbs::hook::event::Gpu;
    use gpuos_pbs::state::Texts;

    use super::*;

    const VNODES: &str = include_str!("../../../../gpuos_pbs/tests/data/23.06.06-vnodes.json");

    fn known(hosts: &[&str]) -> Known {
        let host = Host {
            gpus: vec![Gpu::default(); 8],
            ..Host::default()
        };
        let all = hosts.iter().map(|name| ((*name).to_owned(), host.clone()));
        Known {
            hosts: all.collect::<BTreeMap<_, _>>(),
            ..Known::default()
        }
    }

    /// What is said of a PBS with these vnodes.
    fn told_of(vnodes: &str, known: &Known) -> String {
        let texts = Texts {
            vnodes,
            jobs: include_str!("../../../../gpuos_pbs/tests/data/23.06.06-jobs.json"),
            queues: include_str!("../../../../gpuos_pbs/tests/data/23.06.06-queues.json"),
            server: include_str!("../../../../gpuos_pbs/tests/data/23.06.06-server.json"),
        };
        let site = Site::read(&texts, Config::default()).unwrap();
        let mut findings = Findings::default();
        check(&site, known, &mut findings);
        left_over(&site, &mut findings);
        findings.reply(true).0.text
    }

    fn told(vnodes: &str, hosts: &[&str]) -> String {
        told_of(vnodes, &known(hosts))
    }

    #[test]
    fn gpus_that_are_counted_and_shown_as_they_are_described_are_well() {
        let text = told(VNODES, &["n1", "n2", "n3.example.org", "n4"]);
        assert!(text.contains("All is well."), "{text}");
        assert!(text.contains("PBS counts the GPUs of"), "{text}");
        assert!(
            text.contains("gpuos took GPUs of n3 out of service"),
            "{text}"
        );
    }

    #[test]
    fn what_is_counted_otherwise_is_told_with_what_mends_it() {
        let text = told(VNODES, &["n1", "n5"]);
        for part in [
            "host n5 is described, and PBS has no such host",
            "n[2-4] have GPUs that are not described",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let set = "resources_available.ngpus = 8";
        let fewer = told(
            &VNODES.replacen("\"ngpus\":\t8", "\"ngpus\":\t6", 1),
            &["n1"],
        );
        assert!(
            fewer.contains("PBS counts 6 GPUs on n1") && fewer.contains(set),
            "{fewer}"
        );
        let more = told(
            &VNODES.replacen("\"ngpus\":\t8", "\"ngpus\":\t9", 1),
            &["n1"],
        );
        assert!(
            more.contains("PBS counts 9 GPUs on n1") && more.contains(set),
            "{more}"
        );
        // Two are shared, and counted by their parts.
        let mut shared = known(&["n1"]);
        for gpu in &mut shared.hosts.get_mut("n1").unwrap().gpus[6..] {
            gpu.shares = 4;
        }
        let fewer = VNODES.replacen("\"ngpus\":\t8", "\"ngpus\":\t6", 1);
        let fewer = fewer.replacen("whole=0-7;free=0-1,4-7", "whole=0-5;free=0-1,4-5", 1);
        let text = told_of(&fewer, &shared);
        assert!(text.contains("All is well."), "{text}");
    }

    #[test]
    fn what_a_host_shows_is_held_against_counts_and_description() {
        let silent = told(&VNODES.replacen("gpuos_host", "other", 1), &["n1"]);
        assert!(silent.contains("n1 shows nothing of its GPUs"), "{silent}");
        let stale = told(&VNODES.replacen("free=0-1,4-7", "free=0-7", 1), &["n1"]);
        let part = "n1 shows 8 free GPUs, and PBS counts 6";
        assert!(stale.contains(part), "{stale}");
        let other = told(&VNODES.replacen("whole=0-7", "whole=0-3", 1), &["n1"]);
        let part = "gpuosd on n1 gives GPU 0-3 as a whole, and 0-7 are described so";
        assert!(other.contains(part), "{other}");
        // Where another one gives GPUs, nothing is shown.
        let mut advise = known(&["n1"]);
        advise.hosts.get_mut("n1").unwrap().advise = true;
        let text = told_of(&VNODES.replacen("gpuos_host", "other", 1), &advise);
        assert!(text.contains("All is well."), "{text}");
    }

    #[test]
    fn vnodes_of_an_earlier_gpuos_are_told() {
        let old = |jobs: &str| {
            let vnode = format!(
                "\"nodes\":{{\"n1[3]\":{{\"state\":\"offline\",\"sharing\":\"force_excl\",{jobs}\"resources_available\":{{\"host\":\"n1\",\"ngpus\":1,\"gpuos_leaf\":\"l0\"}}}},"
            );
            told(&VNODES.replacen("\"nodes\":\t{", &vnode, 1), &["n1"])
        };
        let idle = old("");
        assert!(
            idle.contains("n1[3] are vnodes of an earlier gpuos"),
            "{idle}"
        );
        let busy = old("\"jobs\":[\"3.head/0\"],");
        assert!(
            busy.contains("n1[3] are vnodes of an earlier gpuos whose jobs still run"),
            "{busy}"
        );
        let own = told(VNODES, &["n1"]);
        assert!(
            own.contains("PBS has no vnodes of an earlier gpuos"),
            "{own}"
        );
    }
}
