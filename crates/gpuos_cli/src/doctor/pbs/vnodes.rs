//! Vnodes of the GPUs that were described, and what was left over by jobs, planners and gpuosd.

use gpuos_model::hostlist::compress;
use gpuos_pbs::hook::event::{Gpu, Host};
use gpuos_pbs::hook::resources::{MIG_COMPUTE, SHARE_PARTS, UUID};
use gpuos_pbs::state::Site;
use gpuos_pbs::state::nodes::Vnode;

use super::super::about;
use super::super::findings::Findings;
use super::here::short;
use super::hook::Known;

/// With what comments of gpuos on vnodes begin.
const OURS: &str = "gpuos:";

/// How many vnodes are named in a sentence.
const MOST: usize = 8;

/// Looks at the vnodes of each host that is described, and at those of other hosts.
pub fn check(site: &Site, known: &Known, findings: &mut Findings) {
    let mut well = Vec::new();
    for (name, host) in known.hosts.iter().filter(|(_, host)| !host.gpus.is_empty()) {
        if host.advise {
            of_others(site, name, findings);
        } else if is_well(site, (name, host), findings) {
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
                "no host is described, so that moms make no vnodes of GPUs",
                "`gpuos pbs install --hosts gpus.json`; docs/admin/pbs.md has the form",
            )
            .why("jobs cannot be kept within a leaf switch or an NVLink domain");
    }
    if !well.is_empty() {
        findings.ok(
            about::VNODES,
            format!(
                "each GPU of {} is a vnode, as it is described",
                compress(well)
            ),
        );
    }
}

/// A host on which another one gives GPUs: they are counted once, and not by gpuos.
fn of_others(site: &Site, name: &str, findings: &mut Findings) {
    let mut hosts = site.nodes.hosts.iter();
    let found = hosts.find(|one| short(&one.name) == short(name));
    let vnodes = found
        .into_iter()
        .flat_map(|host| site.nodes.vnodes_of(host));
    let with_gpus = vnodes
        .map(|(_, vnode)| vnode)
        .filter(|vnode| vnode.gpus.all > 0);
    // Only gpuos makes such.
    let (own, others): (Vec<&Vnode>, Vec<&Vnode>) =
        with_gpus.partition(|vnode| vnode.exclusive || vnode.is_in_parts());
    let own: Vec<String> = own.iter().map(|vnode| vnode.name.clone()).collect();
    match (&own[..], &others[..]) {
        ([], []) => {
            findings
                .warn(
                    about::VNODES,
                    format!("gpuos only advises on {name} (advise in gpus.json), and no vnode there has GPUs"),
                    "see that pbs_cgroups is enabled for the host, or take advise out of gpus.json and run `gpuos pbs install --hosts`",
                )
                .why("nobody gives these GPUs");
        }
        ([], _) => {
            findings.ok(
                about::VNODES,
                format!("GPUs of {name} are another's to give, and counted once: gpuos only advises there"),
            );
        }
        (own, _) => {
            findings
                .fail(
                    about::VNODES,
                    format!(
                        "gpuos only advises on {name} (advise in gpus.json), and {} are vnodes that it made before",
                        shortened(own)
                    ),
                    "restart the mom there, then delete these vnodes: qmgr -c 'delete node NAME'",
                )
                .why("each GPU is counted twice");
        }
    }
}

/// A GPU that is described, by its index, and its vnode.
type Pair<'a> = (usize, &'a Gpu, Option<&'a Vnode>);

fn is_well(site: &Site, (name, host): (&String, &Host), findings: &mut Findings) -> bool {
    let found = site.nodes.hosts.iter();
    let Some(found) = found
        .into_iter()
        .find(|one| short(&one.name) == short(name))
    else {
        findings.fail(
            about::VNODES,
            format!("host {name} is described, and PBS has no such host"),
            format!("qmgr -c 'create node {name}', or take it out of what `gpuos pbs install --hosts` is given"),
        );
        return false;
    };
    let vnodes: Vec<&Vnode> = site
        .nodes
        .vnodes_of(found)
        .map(|(_, vnode)| vnode)
        .collect();
    let of = |gpu: usize| {
        let ends = format!("[{gpu}]");
        let mut own = vnodes.iter().filter(|vnode| vnode.name.ends_with(&ends));
        own.next().copied()
    };
    let pairs = host.gpus.iter().enumerate();
    let pairs: Vec<Pair<'_>> = pairs.map(|(at, gpu)| (at, gpu, of(at))).collect();
    let listed = |test: &dyn Fn(&Pair<'_>) -> bool| {
        let all = pairs.iter().filter(|pair| test(pair));
        let names: Vec<String> = all
            .map(|(at, ..)| format!("{}[{at}]", found.name))
            .collect();
        (!names.is_empty()).then(|| shortened(&names))
    };
    let before = findings.0.len();
    let restart = "send the mom there a HUP, or restart it; its log says why it makes none";
    // A GPU of a pool is given away by its slices, one that jobs share by its parts.
    let is_made = |(_, gpu, vnode): &Pair<'_>| match (vnode, &gpu.mig) {
        (None, _) => false,
        (Some(vnode), None) if gpu.shares > 0 => {
            vnode.resource(SHARE_PARTS) == Some(&gpu.shares.to_string()[..])
        }
        (Some(vnode), None) => vnode.gpus.all > 0 && !vnode.is_in_parts(),
        (Some(vnode), Some(_)) => vnode.resource(MIG_COMPUTE).is_some(),
    };
    if let Some(names) = listed(&|pair| !is_made(pair)) {
        findings
            .fail(
                about::VNODES,
                format!("PBS has no vnode {names}, which {name} is described with"),
                restart,
            )
            .why("jobs do not get these GPUs");
    }
    let is_shared = |pair: &Pair<'_>| {
        let (_, gpu, vnode) = pair;
        let exclusive = vnode.is_some_and(|vnode| vnode.exclusive);
        is_made(pair) && gpu.mig.is_none() && gpu.shares == 0 && !exclusive
    };
    if let Some(names) = listed(&is_shared) {
        findings
            .fail(
                about::VNODES,
                format!("{names} have not sharing=force_excl"),
                restart,
            )
            .why(
                "pbs_server counts nothing of such a vnode when a job is run from outside pbs_sched, so the planner gives it to nobody",
            );
    }
    let other = |(_, gpu, vnode): &Pair<'_>| {
        let has = vnode
            .and_then(|vnode| vnode.resource(UUID))
            .unwrap_or_default();
        vnode.is_some() && has != gpu.uuid
    };
    if let Some(names) = listed(&other) {
        findings
            .warn(
                about::VNODES,
                format!("{names} have another gpuos_uuid than is described"),
                "send the mom there a HUP, so that it tells PBS what was described last",
            )
            .why("programs are told the GPUs by these names");
    }
    let own = vnodes.iter().filter(|vnode| vnode.name == found.name);
    if own.into_iter().any(|vnode| vnode.gpus.all > 0) {
        findings
            .fail(
                about::VNODES,
                format!("the vnode {} itself has GPUs, beside those of its GPUs", found.name),
                "keep pbs_cgroups from the host (run_only_on_hosts, exclude_hosts), or take the host out of what is described",
            )
            .why("each GPU is counted twice");
    }
    if !found.up {
        let state = vnodes.first().map_or("unknown", |vnode| &vnode.state[..]);
        findings.warn(
            about::VNODES,
            format!("host {name} is {state}"),
            format!("see what its mom says, or `pbsnodes -v {}`", found.name),
        );
    }
    findings.0.len() == before
}

/// Names, of which the first are shown.
fn shortened(names: &[String]) -> String {
    let shown = names
        .iter()
        .take(MOST)
        .cloned()
        .collect::<Vec<_>>()
        .join(" ");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What stays taken, or out of service, until somebody does something.
pub fn left_over(site: &Site, findings: &mut Findings) {
    for (job, vnodes) in &site.left {
        findings
            .warn(
                about::LEFT_OVER,
                format!(
                    "PBS keeps {} for job {job}, which does not have them",
                    shortened(vnodes)
                ),
                "restart pbs_server when it suits (jobs go on); with the hook enabled no more are lost",
            )
            .why("a start that pbs_server refused half way has left them so, and nobody else gets them");
    }
    if site.left.is_empty() {
        findings.ok(
            about::LEFT_OVER,
            "no vnode is kept for a job that does not have it",
        );
    }
    let out = site.nodes.vnodes.iter();
    let out = out.filter(|vnode| vnode.out && vnode.comment.starts_with(OURS));
    let out: Vec<String> = out.map(|vnode| vnode.name.clone()).collect();
    if !out.is_empty() {
        findings.note(
            about::HEALTH,
            format!("gpuos took {} out of service", shortened(&out)),
            "`gpuos health` on the host says why; a vnode that is not to come back by itself gets another comment (qmgr -c 'set node VNODE comment = …')",
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpuos_config::gpuos_toml::Config;
    use gpuos_pbs::hook::event::Divided;
    use gpuos_pbs::state::Texts;

    use super::*;

    const VNODES: &str = include_str!("../../../../gpuos_pbs/tests/data/23.06.06-vnodes.json");

    fn site(vnodes: &str) -> Site {
        let texts = Texts {
            vnodes,
            jobs: include_str!("../../../../gpuos_pbs/tests/data/23.06.06-jobs.json"),
            queues: include_str!("../../../../gpuos_pbs/tests/data/23.06.06-queues.json"),
            server: include_str!("../../../../gpuos_pbs/tests/data/23.06.06-server.json"),
        };
        Site::read(&texts, Config::default()).unwrap()
    }

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

    /// What is said, but for what is well.
    fn told(vnodes: &str, hosts: &[&str]) -> String {
        let mut findings = Findings::default();
        let site = site(vnodes);
        check(&site, &known(hosts), &mut findings);
        left_over(&site, &mut findings);
        findings.reply(true).0.text
    }

    #[test]
    fn gpus_that_are_vnodes_of_one_job_are_well() {
        let text = told(VNODES, &["n1", "n2", "n3.example.org", "n4"]);
        assert!(text.contains("All is well."), "{text}");
        assert!(text.contains("each GPU of"), "{text}");
    }

    #[test]
    fn what_a_mom_did_not_make_is_told_with_its_host() {
        let one_less = VNODES.replace("\"n2[5]\"", "\"n2[9]\"");
        let text = told(&one_less, &["n1", "n2", "n5"]);
        assert!(text.contains("PBS has no vnode n2[5], which n2"), "{text}");
        assert!(
            text.contains("host n5 is described, and PBS has no such host"),
            "{text}"
        );
        assert!(
            text.contains("n[3-4] have GPUs that are not described"),
            "{text}"
        );
        let shared = VNODES.replace("force_excl", "default_shared");
        let text = told(&shared, &["n1"]);
        assert!(
            text.contains("n1[0] n1[1]") && text.contains("have not sharing=force_excl"),
            "{text}"
        );
        let twice = VNODES.replacen("\"ngpus\":\t0", "\"ngpus\":\t8", 1);
        let text = told(&twice, &["n1"]);
        assert!(text.contains("the vnode n1 itself has GPUs"), "{text}");
        let uuid = VNODES.replacen(
            "\"ngpus\":\t1",
            "\"gpuos_uuid\": \"GPU-x\", \"ngpus\":\t1",
            1,
        );
        let text = told(&uuid, &["n1"]);
        assert!(text.contains("another gpuos_uuid"), "{text}");
    }

    #[test]
    fn where_gpuos_only_advises_gpus_are_counted_once_and_by_another() {
        let mut known = known(&["n1"]);
        known.hosts.get_mut("n1").unwrap().advise = true;
        let text = |vnodes: &str| {
            let mut findings = Findings::default();
            check(&site(vnodes), &known, &mut findings);
            findings.reply(true).0.text
        };
        let before = text(VNODES);
        assert!(
            before.contains("n1[0] n1[1]") && before.contains("counted twice"),
            "{before}"
        );
        let none = VNODES.replace("\"ngpus\":\t1", "\"ngpus\":\t0");
        let nobody = text(&none);
        assert!(nobody.contains("no vnode there has GPUs"), "{nobody}");
        let other = text(&none.replacen("\"ngpus\":\t0", "\"ngpus\":\t8", 1));
        assert!(
            other.contains("GPUs of n1 are another's to give"),
            "{other}"
        );
    }

    #[test]
    fn a_shared_gpu_is_a_vnode_with_its_parts() {
        let mut known = known(&["n1"]);
        known.hosts.get_mut("n1").unwrap().gpus[7].shares = 4;
        let text = |vnodes: &str| {
            let mut findings = Findings::default();
            check(&site(vnodes), &known, &mut findings);
            findings.reply(true).0.text
        };
        let missing = text(VNODES);
        assert!(missing.contains("PBS has no vnode n1[7]"), "{missing}");
        let (before, after) = VNODES.split_once("\"n1[7]\":").unwrap();
        let parts = format!("\"{SHARE_PARTS}\": 4, \"ngpus\": 0");
        let after = after.replacen("\"ngpus\":\t1", &parts, 1);
        let after = after.replacen("force_excl", "default_shared", 1);
        let made = text(&format!("{before}\"n1[7]\":{after}"));
        assert!(made.contains("All is well."), "{made}");
    }

    #[test]
    fn a_divided_gpu_is_a_vnode_with_slices_that_jobs_share() {
        let mut known = known(&["n1"]);
        known.hosts.get_mut("n1").unwrap().gpus[7].mig = Some(Divided::default());
        let text = |vnodes: &str| {
            let mut findings = Findings::default();
            check(&site(vnodes), &known, &mut findings);
            findings.reply(true).0.text
        };
        let missing = text(VNODES);
        assert!(
            missing.contains("PBS has no vnode n1[7], which n1"),
            "{missing}"
        );
        let (before, after) = VNODES.split_once("\"n1[7]\":").unwrap();
        let after = after.replacen(
            "\"ngpus\":\t1",
            &format!("\"{MIG_COMPUTE}\": 7, \"ngpus\": 0"),
            1,
        );
        let after = after.replacen("force_excl", "default_shared", 1);
        let made = text(&format!("{before}\"n1[7]\":{after}"));
        assert!(made.contains("All is well."), "{made}");
    }

    #[test]
    fn vnodes_that_nobody_gets_are_told() {
        let (before, after) = VNODES.split_once("\"n4[7]\":").unwrap();
        let lost = after.replacen(
            "\"state\":\t\"free\"",
            "\"state\": \"job-exclusive\", \"jobs\": [\"9.head/0\"]",
            1,
        );
        let text = told(&format!("{before}\"n4[7]\":{lost}"), &["n1"]);
        assert!(text.contains("PBS keeps n4[7] for job 9.head"), "{text}");
        let out = after.replacen(
            "\"state\":\t\"free\"",
            "\"state\": \"offline\", \"comment\": \"gpuos: GPU 7 is out of service\"",
            1,
        );
        let text = told(&format!("{before}\"n4[7]\":{out}"), &["n1"]);
        assert!(text.contains("gpuos took n4[7] out of service"), "{text}");
    }
}
