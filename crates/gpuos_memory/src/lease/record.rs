//! The journal: what the broker has to know after a restart so that nothing is promised twice.
//!
//! A record says all there is about one job or process and replaces the one before it. In text it is a line.

use std::fmt;
use std::str::FromStr;

use super::ids::{AccountId, ClientId, GpuId, JobId, Refuge};
use super::input::JobSpec;

/// Where the memory of a process is, as the broker knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// As its lease has it.
    Resident,
    /// It was told to park there, and has not said that it did.
    Parking(Refuge),
    /// It is parked there.
    Parked(Refuge),
    /// It was told to come back from there, and has not said that it is.
    Returning(Refuge),
}

/// What a process has on one GPU, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    /// In GPU memory, while it works.
    pub hbm: u64,
    /// In host memory, always.
    pub host: u64,
    /// Kept in host memory for `hbm`, for while others have the GPU.
    pub refuge_host: u64,
    /// The same, on NVMe. Both together are `hbm` under time slices, else 0.
    pub refuge_nvme: u64,
    /// Nothing of it is in GPU memory yet: it waits for its first turn.
    pub fresh: bool,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientRecord {
    /// The process.
    pub client: ClientId,
    /// Its job.
    pub job: JobId,
    /// Where its memory is.
    pub place: Place,
    /// Host memory that is on its way to NVMe, and counts on both.
    pub leaving: u64,
    /// Since its own job is short of memory, and not the node.
    pub own: bool,
    /// The driver takes its memory out of GPUs, has, or brings it back: bytes of host memory that this takes beyond what is kept for parking.
    pub by_driver: Option<u64>,
    /// What it has.
    pub leases: Vec<(GpuId, Lease)>,
}

/// A record of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A job, as it was told.
    Job(JobSpec),
    /// The workload manager has it no more.
    JobOver(JobId),
    /// A process.
    Client(ClientRecord),
    /// It is dead, and has nothing.
    Gone(ClientId),
}

/// A line that is no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRecord;

impl fmt::Display for NoRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a line of the journal of leases is not one of this release")
    }
}

impl std::error::Error for NoRecord {}

/// What stands behind bytes that are on their way for the process's own job.
const OWN: &str = "-own";
/// What stands between the place of a process that the driver parks, and the bytes that this takes beyond what is kept for it.
const BY_DRIVER: char = '/';

const PLACES: [(&str, Place); 7] = [
    ("resident", Place::Resident),
    ("parking", Place::Parking(Refuge::Host)),
    ("parked", Place::Parked(Refuge::Host)),
    ("returning", Place::Returning(Refuge::Host)),
    ("parking-nvme", Place::Parking(Refuge::Nvme)),
    ("parked-nvme", Place::Parked(Refuge::Nvme)),
    ("returning-nvme", Place::Returning(Refuge::Nvme)),
];

/// One line, without its end.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::Job(spec) => {
                write!(
                    f,
                    "job {} {} {} {} {} {} {}",
                    spec.job.0,
                    spec.hbm_per_gpu,
                    with_nvme(spec.host, spec.nvme),
                    spec.bytes_per_gpu,
                    u8::from(spec.timeslice),
                    spec.rank,
                    spec.guaranteed
                )?;
                match spec.account {
                    Some(account) => write!(f, " {}", account.0)?,
                    None => f.write_str(" -")?,
                }
                spec.gpus.iter().try_for_each(|gpu| write!(f, " {}", gpu.0))
            }
            Record::JobOver(job) => write!(f, "over {}", job.0),
            Record::Client(it) => {
                let place = PLACES.iter().find(|(_, place)| *place == it.place);
                let place = place.map_or("resident", |(word, _)| word);
                write!(f, "client {} {} {place}", it.client.0, it.job.0)?;
                if let Some(beyond) = it.by_driver {
                    write!(f, "{BY_DRIVER}{beyond}")?;
                }
                write!(f, " {}{}", it.leaving, if it.own { OWN } else { "" })?;
                it.leases.iter().try_for_each(|(gpu, lease)| {
                    write!(
                        f,
                        " {}:{}:{}:{}:{}:{}",
                        gpu.0,
                        lease.hbm,
                        lease.host,
                        lease.refuge_host,
                        lease.refuge_nvme,
                        u8::from(lease.fresh)
                    )
                })
            }
            Record::Gone(client) => write!(f, "gone {}", client.0),
        }
    }
}

fn number<T: FromStr>(word: Option<&str>) -> Result<T, NoRecord> {
    word.and_then(|word| word.parse().ok()).ok_or(NoRecord)
}

fn truth(word: Option<&str>) -> Result<bool, NoRecord> {
    match word {
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        _ => Err(NoRecord),
    }
}

fn lease(word: &str) -> Result<(GpuId, Lease), NoRecord> {
    let mut parts = word.split(':');
    let gpu = GpuId(number(parts.next())?);
    let lease = Lease {
        hbm: number(parts.next())?,
        host: number(parts.next())?,
        refuge_host: number(parts.next())?,
        refuge_nvme: number(parts.next())?,
        fresh: truth(parts.next())?,
    };
    parts.next().map_or(Ok((gpu, lease)), |_| Err(NoRecord))
}

fn client<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<ClientRecord, NoRecord> {
    let client = ClientId(number(words.next())?);
    let job = JobId(number(words.next())?);
    let word = words.next().ok_or(NoRecord)?;
    let (word, by_driver) = match word.split_once(BY_DRIVER) {
        Some((word, beyond)) => (word, Some(number(Some(beyond))?)),
        None => (word, None),
    };
    let place = PLACES.iter().find(|(known, _)| *known == word);
    let leaving = words.next().ok_or(NoRecord)?;
    let own = leaving.strip_suffix(OWN);
    Ok(ClientRecord {
        client,
        job,
        place: place.ok_or(NoRecord)?.1,
        leaving: number(own.or(Some(leaving)))?,
        own: own.is_some(),
        by_driver,
        leases: words.map(lease).collect::<Result<_, _>>()?,
    })
}

/// Host memory of a job and, where it has some, NVMe: `HOST+NVME`. Lines without NVMe are as those of releases that know none.
fn with_nvme(host: u64, nvme: u64) -> String {
    match nvme {
        0 => host.to_string(),
        _ => format!("{host}+{nvme}"),
    }
}

fn host_and_nvme(word: Option<&str>) -> Result<(u64, u64), NoRecord> {
    match word.and_then(|word| word.split_once('+')) {
        None => Ok((number(word)?, 0)),
        Some((host, nvme)) => Ok((number(Some(host))?, number(Some(nvme))?)),
    }
}

fn job<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<JobSpec, NoRecord> {
    let (job, hbm_per_gpu) = (JobId(number(words.next())?), number(words.next())?);
    let (host, nvme) = host_and_nvme(words.next())?;
    Ok(JobSpec {
        job,
        hbm_per_gpu,
        host,
        nvme,
        bytes_per_gpu: number(words.next())?,
        timeslice: truth(words.next())?,
        rank: number(words.next())?,
        guaranteed: number(words.next())?,
        account: match words.next() {
            Some("-") => None,
            word => Some(AccountId(number(word)?)),
        },
        gpus: words
            .map(|word| number(Some(word)).map(GpuId))
            .collect::<Result<_, _>>()?,
    })
}

impl FromStr for Record {
    type Err = NoRecord;

    fn from_str(line: &str) -> Result<Record, NoRecord> {
        let mut words = line.split(' ');
        let record = match words.next() {
            Some("job") => Record::Job(job(words.by_ref())?),
            Some("over") => Record::JobOver(JobId(number(words.next())?)),
            Some("client") => Record::Client(client(words.by_ref())?),
            Some("gone") => Record::Gone(ClientId(number(words.next())?)),
            _ => return Err(NoRecord),
        };
        words.next().map_or(Ok(record), |_| Err(NoRecord))
    }
}
