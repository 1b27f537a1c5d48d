//! The same cluster and queue as Slurm prints it and as PBS does: the same plan, byte for byte.

#[path = "../../gpuos_pbs/tests/pbs/world.rs"]
mod world;

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

use gpuos_config::gpuos_toml::Config;
use gpuos_config::options::JobOptions;
use gpuos_host::Recorded;
use gpuos_host::slurm::site::{JobRequest, Site};
use gpuos_host::slurm::{self, Job};
use gpuos_model::gpuset::GpuSet;
use gpuos_pbs::state::Texts;
use gpuos_placement::plan::{Ending, NodeState, Planner};
use gpuos_placement::queue::{self, Bounds, Decided, Queue, Waiting};
use proptest::prelude::*;

use world::{Form, QUEUES, SERVER, Waits, World, clock};

/// `scontrol -d show nodes`.
fn nodes_text(world: &World) -> String {
    let mut text = String::new();
    for (at, host) in world.hosts.iter().enumerate() {
        let taken = GpuSet(world.taken(at));
        let cpus: u32 = world
            .running
            .iter()
            .flat_map(|job| job.on.iter().map(move |on| (job.cpus, on)))
            .filter(|(_, on)| on.0 == at)
            .map(|(cpus, on)| cpus * on.1.count_ones())
            .sum();
        let used = match taken.len() {
            0 => "gpu:0(IDX:N/A)".to_owned(),
            count => format!("gpu:{count}(IDX:{taken})"),
        };
        let state = if host.down { "DOWN" } else { "MIXED" };
        let all = host.cpus * host.gpus as u32;
        write!(
            text,
            "NodeName={} Arch=x86_64 CoresPerSocket={all} \n   CPUAlloc={cpus} CPUEfctv={all} CPUTot={all} CPULoad=0.59\n   Gres=gpu:{}\n   \
             GresUsed={used}\n   RealMemory={} AllocMem=0 FreeMem=1 Sockets=1 Boards=1\n   State={state} ThreadsPerCore=1 Weight=1 \n   \
             Partitions=workq \n",
            host.name,
            host.gpus,
            host.mib * host.gpus as u64,
        )
        .unwrap();
        if host.out != 0 {
            writeln!(text, "   Extra=[gpuos:1 out={}]", GpuSet(host.out)).unwrap();
        }
        text.push('\n');
    }
    text
}

/// `scontrol -d show jobs`.
fn jobs_text(world: &World) -> String {
    let mut text = String::new();
    for job in &world.running {
        let names: Vec<_> = job
            .on
            .iter()
            .map(|on| &world.hosts[on.0].name[..])
            .collect();
        write!(
            text,
            "JobId={} JobName=runs\n   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n   JobState=RUNNING Reason=None Dependency=(null)\n   \
             RunTime={} TimeLimit={} TimeMin=N/A\n   Partition=workq AllocNode:Sid=head:1\n   NodeList={}\n   NumNodes={} NumCPUs=1 NumTasks=1 CPUs/Task=1\n",
            job.id,
            clock(job.ran),
            clock(job.limit),
            names.join(","),
            names.len(),
        )
        .unwrap();
        for (at, bits) in &job.on {
            let gpus = GpuSet(*bits);
            writeln!(
                text,
                "     Nodes={} CPU_IDs=0 Mem=0 GRES=gpu:{}(IDX:{gpus})",
                world.hosts[*at].name,
                gpus.len(),
            )
            .unwrap();
        }
        text.push('\n');
    }
    for job in &world.waiting {
        let limit = job.limit.map_or("UNLIMITED".to_owned(), clock);
        let Waits {
            id,
            chunks,
            gpus,
            cpus,
            ..
        } = job;
        let (nodes, tres) = match job.form {
            _ if *chunks == 1 => ("1".to_owned(), format!("TresPerNode=gres/gpu:{gpus}")),
            Form::Scatter => (chunks.to_string(), format!("TresPerNode=gres/gpu:{gpus}")),
            Form::Free => (
                format!("1-{chunks}"),
                format!("TresPerTask=gres/gpu:{gpus}"),
            ),
            Form::Pack => ("1".to_owned(), format!("TresPerTask=gres/gpu:{gpus}")),
        };
        write!(
            text,
            "JobId={id} JobName=a\n   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n   JobState=PENDING Reason=Resources Dependency=(null)\n   \
             RunTime=00:00:00 TimeLimit={limit} TimeMin=N/A\n   Partition=workq AllocNode:Sid=head:1\n   NodeList=\n   \
             NumNodes={nodes} NumCPUs=1 NumTasks={chunks} CPUs/Task={cpus} ReqB:S:C:T=0:0:*:*\n   MinCPUsNode={cpus} MinMemoryNode={}M MinTmpDiskNode=0\n   \
             OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)\n   CpusPerTres=gres/gpu:{}\n   {tres}\n\n",
            job.mib,
            cpus.div_ceil(*gpus),
        )
        .unwrap();
    }
    text
}

/// The site of a Slurm with this cluster.
fn slurm_site(world: &World) -> Site {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/24.11.5-config.txt");
    let config = std::fs::read_to_string(data).unwrap();
    let mut topology = String::new();
    let mut leaves: Vec<(&str, Vec<&str>)> = Vec::new();
    for host in &world.hosts {
        match leaves.iter_mut().find(|(leaf, _)| *leaf == host.leaf) {
            Some((_, names)) => names.push(&host.name),
            None => leaves.push((&host.leaf, vec![&host.name])),
        }
    }
    for (leaf, names) in leaves {
        writeln!(topology, "SwitchName={leaf} Nodes={}", names.join(",")).unwrap();
    }
    let (mut slurm, mut gres) = (
        String::from("ClusterName=cap\nGresTypes=gpu\n"),
        String::new(),
    );
    for host in &world.hosts {
        writeln!(slurm, "NodeName={} Gres=gpu:{}", host.name, host.gpus).unwrap();
        for gpu in 0..host.gpus {
            let link = |other| match other == gpu {
                true => "-1",
                false if other / host.island == gpu / host.island => "4",
                false => "0",
            };
            let links: Vec<_> = (0..host.gpus).map(link).collect();
            let (name, links) = (&host.name, links.join(","));
            writeln!(
                gres,
                "NodeName={name} Name=gpu File=/dev/nvidia{gpu} Links={links}"
            )
            .unwrap();
        }
    }
    let machine = Recorded::default()
        .command("scontrol show config", &config)
        .command("scontrol -d show nodes", &nodes_text(world))
        .file("/srv/lab/slurm.conf", &slurm)
        .file("/srv/lab/gres.conf", &gres)
        .file("/srv/lab/topology.conf", &topology);
    Site::read(&machine, None).unwrap()
}

/// The pass over what Slurm prints.
fn by_slurm(world: &World) -> (Site, Decided) {
    let site = slurm_site(world);
    let jobs = Job::parse_all(&jobs_text(world));
    let mut queue = Queue::default();
    for job in jobs.iter().filter(|job| job.is_running()) {
        let left = slurm::seconds(&job.time_limit).unwrap() as i64 - job.run_seconds as i64;
        for part in &job.allocations {
            for node in site.indices(&part.nodes).0 {
                let gpus = part.gpus.len() as u32;
                let at = left.max(1);
                queue.endings.push(Ending { at, node, gpus });
            }
        }
    }
    let waiting = jobs.iter().filter(|job| job.is_pending());
    for (job, waits) in waiting.zip(&world.waiting) {
        let mut options = JobOptions::default();
        let said = [
            ("gpuos-topology", &waits.topology),
            ("gpuos-placement", &waits.placement),
        ];
        for (name, value) in said {
            if let Some(value) = value {
                options.set(name, value).unwrap();
            }
        }
        let wanted = JobRequest::of_job(job, &options, &site).unwrap();
        let states: Vec<NodeState> = wanted.state(&site, &jobs);
        let known = queue.kinds.iter().position(|kind| *kind == states);
        let kind = known.unwrap_or_else(|| {
            queue.kinds.push(states);
            queue.kinds.len() - 1
        });
        queue.waiting.push(Waiting {
            more_memory_mib: wanted.request.memory_mib_per_node,
            request: wanted.request,
            kind,
            ends_in: slurm::seconds(&job.time_limit).map(|limit| limit as i64),
        });
    }
    let mut planner = Planner::new(site.cluster.clone());
    let decided = queue::pass(&mut planner, queue, Bounds::default(), &mut |_, _| true);
    (site, decided)
}

/// The pass over what PBS prints.
fn by_pbs(world: &World) -> (gpuos_pbs::state::Site, Decided) {
    let (vnodes, jobs) = (world.vnodes(), world.jobs());
    let texts = Texts {
        vnodes: &vnodes,
        jobs: &jobs,
        queues: QUEUES,
        server: SERVER,
    };
    let site = gpuos_pbs::state::Site::read(&texts, Config::default()).unwrap();
    let mut planner = Planner::new(site.cluster.clone());
    let plan = gpuos_pbs::pass::plan(&site, &mut planner, Bounds::default(), &HashSet::new());
    assert!(plan.left.is_empty(), "{:?}", plan.left);
    (site, plan.decided)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn slurm_and_pbs_give_the_same_plan_byte_for_byte(seed in any::<u64>(), hosts in 1usize..12) {
        let world = World::random(seed, hosts, hosts, 24);
        let (slurm, of_slurm) = by_slurm(&world);
        let (pbs, of_pbs) = by_pbs(&world);
        prop_assert!(slurm.notes.is_empty() && pbs.notes.is_empty(), "{:?} {:?}", slurm.notes, pbs.notes);
        prop_assert_eq!(&slurm.cluster.fabric, &pbs.cluster.fabric);
        let text = |decided: &Decided| serde_json::to_string_pretty(decided).unwrap();
        prop_assert_eq!(text(&of_slurm), text(&of_pbs));
    }
}
