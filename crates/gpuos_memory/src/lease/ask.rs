//! How much of what a process gets.

use super::config::Config;
use super::ids::{ClientId, GpuId, JobId, Refuge};
use super::ledger::{Client, Ledger};
use super::reason::Refused;
use super::record::{Lease, Place};

impl Ledger {
    /// Gives a process so many bytes on a GPU, all together, or leaves what it has as it is.
    pub fn ask(
        &mut self,
        config: &Config,
        client: ClientId,
        job: JobId,
        gpu: GpuId,
        bytes: u64,
    ) -> Result<(), Refused> {
        let Some(it) = self.jobs.get(&job).filter(|job| !job.over) else {
            return Err(Refused::NoJob);
        };
        if !it.spec.gpus.contains(&gpu) || !self.supply.gpus.iter().any(|it| it.0 == gpu) {
            return Err(Refused::NotItsGpu { gpu });
        }
        let timeslice = it.spec.timeslice;
        match self.clients.get(&client) {
            Some(known) if known.job != job => return Err(Refused::NoJob),
            Some(known) if known.ending.is_some() => return Err(Refused::Ending),
            Some(_) => {}
            None if self.of_job(job).count() >= config.clients_per_job => {
                return Err(Refused::TooMany {
                    most: config.clients_per_job,
                });
            }
            None => {}
        }
        let known = self.clients.get_mut(&client);
        let works = known.as_ref().is_none_or(|it| it.place == Place::Resident);
        let before = known.and_then(|it| it.leases.remove(&gpu));
        let granted = match before {
            Some(before) if bytes <= before.hbm + before.host => Ok(less(before, bytes, works)),
            Some(_) if timeslice && !works => Err(Refused::Grows),
            _ => self.more(client, job, gpu, bytes, before.unwrap_or_default()),
        };
        let lease = match &granted {
            Ok(lease) => (bytes > 0).then_some(*lease),
            Err(_) => before,
        };
        if let Some(lease) = lease {
            // Under time slices it begins as one that is parked and has nothing.
            let place = match timeslice {
                true => Place::Parked(Refuge::Host),
                false => Place::Resident,
            };
            let new = || Client::new(job, place);
            let client = self.clients.entry(client).or_insert_with(new);
            client.leases.insert(gpu, lease);
        }
        if let (Ok(lease), Some(client)) = (&granted, self.clients.get_mut(&client))
            && let Some(bytes) = client.squeezed.get_mut(&gpu)
        {
            // What it is given of the GPU with this answer has come back. The rest does when the others are gone, as far as it is its still.
            let came = lease.hbm.saturating_sub(before.map_or(0, |it| it.hbm));
            *bytes = bytes.saturating_sub(came).min(lease.host);
            client.squeezed.retain(|_, bytes| *bytes > 0);
        }
        granted.map(|_| ())
    }

    fn more(
        &self,
        client: ClientId,
        job: JobId,
        gpu: GpuId,
        bytes: u64,
        before: Lease,
    ) -> Result<Lease, Refused> {
        let it = &self.jobs[&job];
        let spec = &it.spec;
        let others = self.of_job(job).filter_map(|(_, it)| it.leases.get(&gpu));
        let (hbm, all) = others.fold((0, 0), |sum: (u64, u64), lease| {
            (sum.0 + lease.hbm, sum.1 + lease.hbm + lease.host)
        });
        let left = spec.bytes_per_gpu.saturating_sub(all);
        if bytes > left {
            return Err(Refused::BeyondGrant { asked: bytes, left });
        }
        // What is on NVMe, or goes there, has room there for what it was.
        let moves = self.clients.get(&client).is_some_and(|client| {
            let nvme = |it| [Place::Parking(it), Place::Parked(it), Place::Returning(it)];
            nvme(Refuge::Nvme).contains(&client.place) || client.leaving > 0
        });
        if it.stowed || moves {
            return Err(Refused::HostFull { takes: bytes });
        }
        let own = spec.hbm_per_gpu.saturating_sub(hbm);
        let card = self.for_turns(gpu);
        let room = match (spec.timeslice, self.kept_for_turns(gpu)) {
            (true, _) => card.saturating_sub(hbm),
            // Who has it alone has what contexts take, too: it says how much that is.
            (false, 0) => self.free_of(gpu),
            (false, kept) => card.saturating_sub(kept),
        };
        let hbm = bytes.min(own).min(room).max(before.hbm);
        let in_turns: u64 = self.needs(gpu, false).values().sum();
        let full = in_turns + hbm > card || self.promised_hbm(gpu) + hbm > self.present(gpu);
        if spec.timeslice && before.hbm > 0 && hbm > before.hbm && full {
            return Err(Refused::Grows);
        }
        let host = bytes - hbm;
        let left = spec.host.saturating_sub(self.charge(job).host);
        if host > left {
            return Err(Refused::BeyondMemory { takes: host, left });
        }
        let quota = self.quota_room(job);
        if host > quota {
            return Err(Refused::BeyondQuota {
                takes: host,
                left: quota,
            });
        }
        let node = self.host_room(job);
        if host > node {
            return Err(Refused::HostFull { takes: host });
        }
        if !spec.timeslice {
            return Ok(Lease {
                hbm,
                host,
                ..Lease::default()
            });
        }
        // Who has NVMe of its own has asked for that, and its memory is for its programs.
        let refuge_host = match spec.nvme {
            0 => hbm.min(left.min(quota).min(node) - host),
            _ => 0,
        };
        let refuge_nvme = hbm - refuge_host;
        let nvme = self.nvme_room(job);
        if refuge_nvme > nvme && spec.nvme == 0 && hbm <= left.min(quota) - host {
            // The job has the memory, but not the node.
            return Err(Refused::HostFull { takes: host + hbm });
        }
        if refuge_nvme > nvme {
            return Err(Refused::NoRefuge {
                lacks: refuge_nvme - nvme,
            });
        }
        Ok(Lease {
            hbm,
            host,
            refuge_host,
            refuge_nvme,
            fresh: before.hbm == 0 || before.fresh,
        })
    }
}

/// What is left when a process gives back: GPU memory is given back last. One that parks was told how much goes where: its refuge
/// stays as it was.
fn less(before: Lease, bytes: u64, works: bool) -> Lease {
    let hbm = before.hbm.min(bytes);
    let mut lease = Lease {
        hbm,
        host: bytes - hbm,
        ..before
    };
    if works {
        lease.refuge_host = before.refuge_host.min(hbm);
        lease.refuge_nvme = before.refuge_nvme.min(hbm - lease.refuge_host);
    }
    lease
}
