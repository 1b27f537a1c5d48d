//! A generated cluster and queue, and how PBS prints it.

use std::fmt::Write;

/// Chance that is the same each time.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    pub name: String,
    pub gpus: usize,
    pub leaf: String,
    /// How many GPUs, one after the other, have NVLink to each other.
    pub island: usize,
    /// CPUs and MiB for each GPU.
    pub cpus: u32,
    pub mib: u64,
    /// How many vnodes of the site have its GPUs, as evenly as they can be divided; 1: its own.
    pub vnodes: usize,
    /// How far what the host shows of its GPUs is out of date; `None`: it shows nothing.
    pub shown: Option<u32>,
    /// What PBS says of each of these vnodes beside, as JSON with a comma at its end.
    pub more: String,
    /// What these vnodes have beside, likewise.
    pub has: String,
    /// GPUs out of service, as bits.
    pub out: u64,
    pub down: bool,
}

/// A job that runs: host, and its GPUs there as bits.
#[derive(Clone, Debug)]
pub struct Running {
    pub id: u32,
    pub on: Vec<(usize, u64)>,
    /// CPUs for each GPU.
    pub cpus: u32,
    pub limit: u32,
    pub ran: u32,
}

/// How a job's chunks are spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Scatter,
    Free,
    Pack,
}

/// A job that waits.
#[derive(Clone, Debug)]
pub struct Waits {
    pub id: u32,
    pub chunks: u32,
    pub gpus: u32,
    pub cpus: u32,
    pub mib: u64,
    pub form: Form,
    pub topology: Option<String>,
    pub placement: Option<String>,
    pub limit: Option<u32>,
    pub name: String,
    /// What stands beside the chunk's counts, and beside the place.
    pub more: String,
    pub place: String,
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub hosts: Vec<Host>,
    pub running: Vec<Running>,
    pub waiting: Vec<Waits>,
}

impl World {
    /// A cluster of so many hosts, about so many jobs that run and exactly so many that wait.
    pub fn random(seed: u64, hosts: usize, running: usize, waiting: usize) -> World {
        let mut dice = Dice::new(seed);
        let gpus = [4, 8][dice.below(2) as usize];
        let island = [1, 2, gpus][dice.below(3) as usize];
        let in_leaf = 2 + dice.below(4) as usize;
        let mut world = World::default();
        for at in 0..hosts {
            world.hosts.push(Host {
                name: format!("n{at}"),
                gpus,
                leaf: format!("l{}", at / in_leaf),
                island,
                cpus: 8,
                mib: 65_536,
                vnodes: 1,
                shown: Some(0),
                more: String::new(),
                has: String::new(),
                out: if dice.one_in(8) {
                    1 << dice.below(gpus as u64)
                } else {
                    0
                },
                down: dice.one_in(12),
            });
        }
        for nth in 0..running {
            world.run(&mut dice, 100 + nth as u32);
        }
        for nth in 0..waiting {
            let waits = world.ask(&mut dice, 10_000 + nth as u32);
            world.waiting.push(waits);
        }
        world
    }

    /// GPUs of a host that running jobs have.
    pub fn taken(&self, host: usize) -> u64 {
        let on = self.running.iter().flat_map(|job| &job.on);
        on.filter(|on| on.0 == host).fold(0, |all, on| all | on.1)
    }

    fn run(&mut self, dice: &mut Dice, id: u32) {
        let wanted = 1 + dice.below(3) as usize;
        let each = 1 + dice.below(self.hosts[0].gpus as u64) as usize;
        let first = dice.below(self.hosts.len() as u64) as usize;
        let mut on = Vec::new();
        for step in 0..self.hosts.len() {
            let at = (first + step) % self.hosts.len();
            let host = &self.hosts[at];
            let busy = self.taken(at) | host.out;
            let free: Vec<usize> = (0..host.gpus).filter(|gpu| busy >> gpu & 1 == 0).collect();
            if !host.down && free.len() >= each && on.len() < wanted {
                let from = dice.below((free.len() - each + 1) as u64) as usize;
                let bits = free[from..from + each]
                    .iter()
                    .fold(0, |all, gpu| all | 1 << gpu);
                on.push((at, bits));
            }
        }
        if !on.is_empty() {
            let limit = 600 * (1 + dice.below(100) as u32);
            self.running.push(Running {
                id,
                on,
                cpus: 1 + dice.below(8) as u32,
                limit,
                ran: dice.below(u64::from(limit)) as u32,
            });
        }
    }

    fn ask(&self, dice: &mut Dice, id: u32) -> Waits {
        let most = self.hosts[0].gpus as u64;
        let form = match dice.below(4) {
            0 => Form::Free,
            1 => Form::Pack,
            _ => Form::Scatter,
        };
        let gpus = 1 + dice.below(most) as u32;
        let chunks = match form {
            Form::Pack => 1 + dice.below(most / u64::from(gpus)) as u32,
            _ => 1 + dice.below(4) as u32,
        };
        let level = [
            "leaf",
            "leaf:required",
            "node",
            "nvlink",
            "leaf:preferred",
            "any",
        ];
        let rule = ["pack", "spread", "best-fit", "first-fit", "default"];
        Waits {
            id,
            chunks,
            gpus,
            cpus: gpus * (1 + dice.below(8) as u32),
            mib: if dice.one_in(3) {
                1024 * u64::from(gpus)
            } else {
                0
            },
            form,
            topology: (!dice.one_in(3)).then(|| level[dice.below(6) as usize].to_owned()),
            placement: dice
                .one_in(4)
                .then(|| rule[dice.below(5) as usize].to_owned()),
            limit: (!dice.one_in(4)).then(|| 600 * (1 + dice.below(60) as u32)),
            name: ["a", "007", "nan", "x y", "1e5"][dice.below(5) as usize].to_owned(),
            more: String::new(),
            place: String::new(),
        }
    }

    /// `pbsnodes -av -F json`.
    pub fn vnodes(&self) -> String {
        let mut text = String::from(
            "{\n    \"timestamp\":1795000000,\n    \"pbs_version\":\"23.06.06\",\n    \"pbs_server\":\"head\",\n    \"nodes\":{\n",
        );
        let mut first = true;
        for (at, host) in self.hosts.iter().enumerate() {
            if host.vnodes > 1 {
                self.vnode(&mut text, at, None, &mut first);
            }
            for part in 0..host.vnodes {
                self.vnode(&mut text, at, Some(part), &mut first);
            }
        }
        text.push_str("\n    }\n}\n");
        text
    }

    /// The name of one of a host's vnodes, and its GPUs as bits.
    pub fn part(&self, at: usize, part: usize) -> (String, u64) {
        let host = &self.hosts[at];
        let of = |gpu: usize| gpu * host.vnodes / host.gpus == part;
        let gpus = (0..host.gpus).filter(|gpu| of(*gpu));
        let name = match host.vnodes {
            1 => host.name.clone(),
            _ => format!("{}[{part}]", host.name),
        };
        (name, gpus.fold(0, |all, gpu| all | 1 << gpu))
    }

    /// One of a host's vnodes, or its own without GPUs.
    fn vnode(&self, text: &mut String, at: usize, part: Option<usize>, first: &mut bool) {
        let host = &self.hosts[at];
        let (name, gpus) = match part {
            Some(part) => self.part(at, part),
            None => (host.name.clone(), 0),
        };
        let here = |bits: u64| bits & gpus;
        let on = |job: &Running| {
            let own = job.on.iter().filter(|on| on.0 == at);
            own.map(|on| here(on.1).count_ones()).sum::<u32>()
        };
        let jobs: Vec<(u32, u32, u32)> = self
            .running
            .iter()
            .map(|job| (job.id, on(job), job.cpus))
            .filter(|(_, count, _)| *count > 0)
            .collect();
        let used: u32 = jobs.iter().map(|(_, count, _)| count).sum();
        let cpus: u32 = jobs.iter().map(|(_, count, cpus)| count * cpus).sum();
        let (all, out) = (gpus.count_ones(), here(host.out).count_ones());
        let state = match host.down {
            true => "state-unknown,down",
            false => "free",
        };
        let list: Vec<String> = jobs
            .iter()
            .map(|(id, ..)| format!("\"{id}.head/0\""))
            .collect();
        let list = match list.is_empty() {
            true => String::new(),
            false => format!("            \"jobs\":[{}],\n", list.join(",")),
        };
        let site = match out {
            0 => String::new(),
            out => format!("                \"gpuos_ngpus\":\"{all}>{}\",\n", all - out),
        };
        let island = match host.island == host.gpus && host.gpus > 1 {
            true => format!("                \"gpuos_nvlink\":\"{}.0\",\n", host.name),
            false => String::new(),
        };
        let shows = part.unwrap_or(0) == 0 && (host.vnodes == 1 || part.is_none());
        let shown = match host.shown.filter(|_| shows) {
            None => String::new(),
            Some(late) => self.shown(at, self.taken(at) << late | u64::from(late)),
        };
        let more = match part {
            Some(_) => &host.more,
            None => "",
        };
        if !std::mem::take(first) {
            text.push_str(",\n");
        }
        write!(
            text,
            "        \"{name}\":{{\n            \"Mom\":\"{0}\",\n            \"ntype\":\"PBS\",\n{more}            \"state\":\"{state}\",\n{list}            \
             \"resources_available\":{{\n                \"arch\":\"linux\",\n                \"gpuos_leaf\":\"{1}\",\n{island}{site}{shown}{4}                \
             \"host\":\"{0}\",\n                \"mem\":\"{2}kb\",\n                \"ncpus\":{3},\n                \"ngpus\":{5},\n                \
             \"vnode\":\"{name}\"\n            }},\n            \"resources_assigned\":{{\n                \"ncpus\":{cpus},\n                \
             \"ngpus\":{used}\n            }},\n            \"resv_enable\":\"True\"\n        }}",
            host.name,
            host.leaf,
            (host.mib << 10) * u64::from(all),
            host.cpus * all,
            host.has,
            all - out,
        )
        .unwrap();
    }

    /// What gpuosd shows of a host where jobs have these GPUs.
    fn shown(&self, at: usize, taken: u64) -> String {
        let host = &self.hosts[at];
        let list = |bits: u64| {
            let gpus = (0..host.gpus).filter(|gpu| bits >> gpu & 1 == 1);
            let gpus: Vec<String> = gpus.map(|gpu| gpu.to_string()).collect();
            match gpus.is_empty() {
                true => "-".to_owned(),
                false => gpus.join(","),
            }
        };
        let all = (1 << host.gpus) - 1;
        let group = |first: usize| {
            let bits = ((1 << host.island) - 1) << first;
            format!("{}.{}@{}", host.name, first / host.island, list(bits))
        };
        let groups: Vec<String> = (0..host.gpus).step_by(host.island).map(group).collect();
        let links = match host.island {
            1 => String::new(),
            _ => format!(";links={}", groups.join("+")),
        };
        format!(
            "                \"gpuos_host\":\"whole={};free={};out={}{links}\",\n",
            list(all),
            list(all & !taken & !host.out),
            list(host.out),
        )
    }

    /// `qstat -f -F json`, with users' variables as PBS prints them.
    pub fn jobs(&self) -> String {
        let mut text = String::from("{\n    \"timestamp\":1795000000,\n    \"Jobs\":{");
        let mut first = true;
        let mut begin = |text: &mut String, id: u32, name: &str, state: &str| {
            text.push_str(if first { "\n" } else { ",\n" });
            first = false;
            // A name that looks like a number stands without quotes.
            let name = match name.parse::<f64>() {
                Ok(_) => name.to_owned(),
                Err(_) => format!("\"{name}\""),
            };
            write!(
                text,
                "        \"{id}.head\":{{\n            \"Job_Name\":{name},\n            \"Job_Owner\":\"ann@head\",\n            \
                 \"job_state\":\"{state}\",\n            \"queue\":\"workq\",\n            \"server\":\"head\",\n            \
                 \"Priority\":0,\n            \"Variable_List\":{{\n                \"PBS_O_HOME\":\"/home/ann\",\n                \
                 \"X\":\"tab\there \\\"job_state\\\":\\\"R\\\", \\, \x01\",\n                \"X\":\"007\",\n                \"PBS_O_QUEUE\":\"workq\"\n            }},\n"
            )
            .unwrap();
        };
        for job in &self.running {
            begin(&mut text, job.id, "runs", "R");
            let chunk = |(at, bits): &(usize, u64)| {
                let parts = (0..self.hosts[*at].vnodes).filter_map(|part| {
                    let (name, gpus) = self.part(*at, part);
                    let count = (bits & gpus).count_ones();
                    let cpus = job.cpus * count;
                    (count > 0).then(|| format!("{name}:ncpus={cpus}:ngpus={count}"))
                });
                format!("({})", parts.collect::<Vec<_>>().join("+"))
            };
            let given = job.on.iter().map(chunk).collect::<Vec<_>>().join("+");
            let (limit, ran) = (clock(job.limit), clock(job.ran));
            write!(
                text,
                "            \"exec_vnode\":\"{given}\",\n            \"Resource_List\":{{\n                \"walltime\":\"{limit}\"\n            }},\n            \
                 \"resources_used\":{{\n                \"walltime\":\"{ran}\"\n            }}\n        }}"
            )
            .unwrap();
        }
        for job in &self.waiting {
            begin(&mut text, job.id, &job.name, "Q");
            let memory = match job.mib {
                0 => String::new(),
                mib => format!(":mem={mib}mb"),
            };
            let (count, gpus, cpus) = (job.chunks, job.gpus, job.cpus);
            let select = format!("{count}:ngpus={gpus}:ncpus={cpus}{memory}{}", job.more);
            let place = match job.form {
                Form::Scatter => "scatter",
                Form::Free => "free",
                Form::Pack => "pack",
            };
            let mut more = String::new();
            let said = [
                ("gpuos_topology", job.topology.clone()),
                ("gpuos_placement", job.placement.clone()),
                ("walltime", job.limit.map(clock)),
            ];
            for (name, value) in said {
                if let Some(value) = value {
                    writeln!(more, "                \"{name}\":\"{value}\",").unwrap();
                }
            }
            write!(
                text,
                "            \"Resource_List\":{{\n{more}                \"ncpus\":{},\n                \"ngpus\":{},\n                \"nodect\":{count},\n                \
                 \"place\":\"{place}{}\",\n                \"select\":\"{select}\"\n            }},\n            \"schedselect\":\"{select}\"\n        }}",
                count * cpus,
                count * gpus,
                job.place,
            )
            .unwrap();
        }
        text.push_str("\n    }\n}\n");
        text
    }
}

/// `01:30:00`.
pub fn clock(seconds: u32) -> String {
    format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// `qstat -Q -f -F json`.
pub const QUEUES: &str = r#"{"timestamp":1795000000,"Queue":{
    "workq":{"queue_type":"Execution","total_jobs":1,"enabled":"True","started":"True"},
    "express":{"queue_type":"Execution","Priority":150,"enabled":"True","started":"True"},
    "stopped":{"queue_type":"Execution","enabled":"True","started":"False"},
    "limited":{"queue_type":"Execution","enabled":"True","started":"True","max_run":"[u:PBS_GENERIC=2]"},
    "route":{"queue_type":"Route","enabled":"True","started":"True"}}}"#;

/// `qstat -B -f -F json`.
pub const SERVER: &str = r#"{"timestamp":1795000000,"Server":{"head":{"server_state":"Active","scheduling":"True",
    "default_chunk":{"ncpus":1},"license_count":"Avail_Global:1000000 Avail_Local:1000000"}}}"#;
