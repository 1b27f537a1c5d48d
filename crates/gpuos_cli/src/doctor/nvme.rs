//! Whether NVMe for what is parked is counted so that no job is started for which there is none.

use std::collections::BTreeMap;

use gpuos_host::slurm::site::Site;
use gpuos_model::hostlist::compress;

use super::Findings;
use super::about::{self, About};
use super::shards::count;

const NAME: About = about::NVME;

/// Says nothing where gpuos.toml names no GRES for it.
pub fn check(site: &Site, findings: &mut Findings) {
    let Some(gres) = site.config.parking_gres() else {
        return;
    };
    let most = u64::from(gres.gib);
    let mut right: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    let (mut wrong, mut less) = (right.clone(), right.clone());
    for node in &site.nodes {
        let gib = count(node, &gres.name);
        let of = match gib {
            _ if gib > most => &mut wrong,
            _ if gib < most && (gib > 0 || count(node, "shard") > 0) => &mut less,
            _ => &mut right,
        };
        of.entry(gib).or_default().push(&node.name);
    }
    right.remove(&0);
    if right.is_empty() && wrong.is_empty() && less.keys().all(|gib| *gib == 0) {
        let what = format!(
            "no node has GRES {}, which nvme-gres in [memory] of gpuos.toml names: jobs with park=nvme are refused, and nobody else gets what is kept for them",
            gres.name
        );
        let fix = "write it into GresTypes and Gres= of slurm.conf and, with Flags=CountOnly, into gres.conf, or leave nvme-gres out";
        findings.warn(NAME, what, fix);
        return;
    }
    for (counts, so, fix) in [
        (
            &wrong,
            format!("gpuosd lends {most} GiB of it: jobs would start for which there is none"),
            "lower the count in slurm.conf and gres.conf, or raise nvme-gres-gib and nvme-gib in [memory] of gpuos.toml",
        ),
        (
            &less,
            format!(
                "gpuosd keeps {most} GiB for it: nobody gets the rest, also where a node is short of host memory"
            ),
            "raise the count in slurm.conf and gres.conf, or lower nvme-gres-gib in [memory] of gpuos.toml",
        ),
    ] {
        for (gib, nodes) in counts {
            let nodes = compress(nodes.iter().copied());
            let what = format!("{nodes}: {gib} of GRES {}, and {so}", gres.name);
            findings.warn(NAME, what, fix);
        }
    }
    if wrong.is_empty() && less.is_empty() {
        let all = right.into_iter();
        let all: Vec<String> = all
            .map(|(gib, nodes)| format!("{gib} GiB ({})", compress(nodes)))
            .collect();
        findings.ok(NAME, all.join(", "));
    }
}
