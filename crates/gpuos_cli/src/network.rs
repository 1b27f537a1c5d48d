//! What a place can expect of the network between its nodes, alone and beside the gangs that run.

use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::Site;
use gpuos_placement::fabric::{UNBOUNDED, UNITS_PER_GBPS};
use gpuos_placement::plan::Choice;
use gpuos_placement::traffic::Traffic;
use serde_json::{Value, json};

/// Modelled bandwidth between the nodes of a place, in GB/s.
pub struct Network {
    alone: f64,
    beside: f64,
    /// The link that bounds it beside the gangs that run.
    narrowest: Option<String>,
}

/// The gangs that run on the network that gpuos.toml describes; `None` when it describes none.
pub fn traffic(site: &Site, jobs: &[Job]) -> Option<Traffic> {
    let mut traffic = site.config.traffic(&site.cluster)?;
    for job in jobs.iter().filter(|job| job.is_running()) {
        let mut nodes = Vec::new();
        for part in job.allocations.iter().filter(|part| part.gpu_count > 0) {
            let (found, _) = site.indices(&part.nodes);
            nodes.extend(found.into_iter().map(|node| (node, part.gpus)));
        }
        traffic.start(job.id, nodes);
    }
    Some(traffic)
}

/// The figures of a place; `None` when it needs no network, or nothing is known of its links.
pub fn of(traffic: &mut Traffic, place: &Choice) -> Option<Network> {
    let [(alone, _), (beside, narrowest)] = traffic.bandwidth(place);
    let gbps = |units| f64::from(units) / f64::from(UNITS_PER_GBPS);
    (place.nodes.len() > 1 && alone != UNBOUNDED && beside != UNBOUNDED).then(|| Network {
        alone: gbps(alone),
        beside: gbps(beside),
        narrowest: narrowest.map(|link| traffic.link_name(link)),
    })
}

impl Network {
    /// A line for people.
    pub fn text(&self) -> String {
        let Network { alone, beside, .. } = self;
        let link = match &self.narrowest {
            Some(link) => format!("; the narrowest link is {link}"),
            None => String::new(),
        };
        format!(
            "Between the nodes, as modelled: {alone:.1} GB/s alone, {beside:.1} GB/s beside the jobs that \
             run{link}.\n"
        )
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        json!({
            "alone_gbps": self.alone,
            "beside_running_gbps": self.beside,
            "narrowest_link": self.narrowest,
        })
    }
}
