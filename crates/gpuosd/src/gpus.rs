//! The GPUs: a thread that polls them and one that waits for events. Where NVIDIA's library hangs, they
//! hang, and nobody else.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::health;
use gpuos_host::hardware::discover::{self, Sysfs, discover};
use gpuos_host::hardware::nvml::{self, Answer, Error, GpuLibrary, Happening};
use gpuos_model::gpu_index::{NvmlIndex, NvmlSet};
use gpuos_model::node_gpu::NodeGpu;

use crate::numbering::Numbering;
use crate::sink::Sink;

/// How long one wait for events lasts: the library is let go that often.
const WAIT: Duration = Duration::from_millis(500);
/// Wait after a library that could not be opened, first and at most.
const CLOSED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Opens NVIDIA's library.
pub type Opener = Box<dyn Fn() -> Answer<Arc<dyn GpuLibrary>> + Send + Sync>;

/// A GPU: who it is, and its number in Slurm's eyes and in the library's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuIdentity {
    /// As people call it.
    pub number: NodeGpu,
    /// NVML's index.
    pub nvml: NvmlIndex,
    /// NVIDIA's id.
    pub uuid: String,
    /// Name of the board.
    pub name: String,
    /// PCI address.
    pub pci: String,
}

/// What the threads tell.
#[derive(Debug)]
pub enum Notice {
    /// The library was opened, or why not.
    Library(Result<Vec<GpuIdentity>, String>),
    /// A round of polls has come to its end.
    Polled,
    /// Something for the health rules.
    Health(health::Event),
    /// What the node is made of, once the library was opened.
    Hardware(Box<discover::NodeHardware>),
    /// Instances of a GPU were made or destroyed, by NVML's index.
    Divided(NvmlIndex),
}

/// As of [`Numbering::at`], all GPUs.
type Known = ((NvmlSet, u64), Vec<GpuIdentity>);

#[derive(Default)]
struct Shared {
    library: Option<Arc<dyn GpuLibrary>>,
    /// Nobody may open it.
    closed: bool,
}

/// The library, opened when it is needed and closed for resets.
pub struct Library {
    open: Opener,
    shared: Mutex<Shared>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Library")
    }
}

/// While it lives, the library is closed.
pub struct Closed<'a>(&'a Library);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = false;
    }
}

impl Library {
    /// Not open yet.
    pub fn new(open: Opener) -> Library {
        Library {
            open,
            shared: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The library, to be let go soon.
    ///
    /// # Errors
    /// It cannot be opened, or is closed for a reset.
    pub fn get(&self) -> Answer<Arc<dyn GpuLibrary>> {
        {
            let shared = self.lock();
            if shared.closed {
                return Err(Error::InUse);
            }
            if let Some(library) = &shared.library {
                return Ok(Arc::clone(library));
            }
        }
        // Without the lock: to open it may take as long as the driver likes.
        let opened = (self.open)()?;
        let mut shared = self.lock();
        match (&shared.library, shared.closed) {
            (_, true) => Err(Error::InUse),
            (Some(library), _) => Ok(Arc::clone(library)),
            (None, _) => {
                shared.library = Some(Arc::clone(&opened));
                Ok(opened)
            }
        }
    }

    /// Whether it is closed for a reset.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Closes it, and keeps it closed until what is returned is dropped.
    ///
    /// # Errors
    /// A call into it does not come back.
    pub fn close(&self, patience: Duration) -> Result<Closed<'_>, String> {
        let library = {
            let mut shared = self.lock();
            shared.closed = true;
            shared.library.take()
        };
        let closed = Closed(self);
        let Some(library) = library else {
            return Ok(closed);
        };
        let deadline = Instant::now() + patience;
        while Arc::strong_count(&library) > 1 {
            if Instant::now() > deadline {
                return Err("a call into NVIDIA's library does not come back".into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        drop(library);
        Ok(closed)
    }

    /// Lets the library go, so that it is opened anew: it has gone wrong as a whole.
    fn forget(&self) {
        self.lock().library = None;
    }
}

/// Starts both threads.
///
/// # Errors
/// A thread cannot be made.
pub fn start(
    library: &Arc<Library>,
    numbering: &Arc<Numbering>,
    sysfs: Sysfs,
    interval: Duration,
    to: &Sink<Notice>,
) -> std::io::Result<()> {
    let (own, order, tell) = (Arc::clone(library), Arc::clone(numbering), to.clone());
    let poll = move || poll_on(&own, &order, &sysfs, interval, &tell);
    thread::Builder::new().name("poll".into()).spawn(poll)?;
    let (own, order, tell) = (Arc::clone(library), Arc::clone(numbering), to.clone());
    let wait = move || wait_on(&own, &order, &tell);
    thread::Builder::new().name("events".into()).spawn(wait)?;
    Ok(())
}

/// Who the GPUs are, numbered as Slurm does. One that gres.conf leaves out, or that is in a pool (`divided`, by NVML's
/// index), is not one of GRES gpu, and none of ours.
pub(crate) fn found(
    library: &dyn GpuLibrary,
    numbering: &Numbering,
    divided: NvmlSet,
) -> Answer<Vec<GpuIdentity>> {
    // A guess here would take a healthy GPU out of service in place of a bad one.
    let order = numbering.order().map_err(Error::Refused)?;
    let count = library.count()?;
    let mut all = Vec::new();
    let all_gpus = (0..count).filter_map(|nvml| NvmlIndex::try_from(nvml).ok());
    for nvml in all_gpus.filter(|nvml| !divided.contains(*nvml)) {
        match library.identity(nvml.into()) {
            Ok(identity) => all.push((nvml, identity)),
            // It keeps its place, and has no name.
            Err(Error::Lost | Error::ResetRequired | Error::Timeout) => {
                all.push((nvml, nvml::Identity::default()));
            }
            Err(e) => return Err(e),
        }
    }
    let in_mig = |who: &nvml::Identity| who.mig.is_some_and(|mig| mig.on);
    if let Some((nvml, _)) = all.iter().find(|(_, who)| in_mig(who))
        && numbering.is_guess()
    {
        let why = format!(
            "GPU {nvml} is in MIG mode, and gpuos.toml has never been read here: which GPUs are of Slurm's GRES gpu is \
             not known"
        );
        return Err(Error::Refused(why));
    }
    let each: Vec<_> = all.iter().map(|(_, id)| (id.minor, &id.uuid[..])).collect();
    let numbers = order.number_each(&each);
    let found = all.into_iter().zip(numbers);
    let found = found.filter_map(|((nvml, identity), gres)| {
        Some(GpuIdentity {
            number: gres?.try_into().map(NodeGpu::Gres).ok()?,
            nvml,
            uuid: identity.uuid,
            name: identity.name,
            pci: identity.pci,
        })
    });
    Ok(found.collect())
}

/// The same with the GPUs of the pool after them.
fn all(
    library: &dyn GpuLibrary,
    numbering: &Numbering,
    divided: NvmlSet,
) -> Answer<Vec<GpuIdentity>> {
    let mut all = found(library, numbering, divided)?;
    let count = library.count()?;
    for nvml in divided.iter().filter(|nvml| u8::from(*nvml) < count) {
        // One that does not say who it is keeps its place: its polls say the rest.
        let identity = library.identity(nvml.into()).unwrap_or_default();
        all.push(GpuIdentity {
            number: NodeGpu::Pool(nvml),
            nvml,
            uuid: identity.uuid,
            name: identity.name,
            pci: identity.pci,
        });
    }
    Ok(all)
}

fn poll_on(
    library: &Library,
    numbering: &Numbering,
    sysfs: &Sysfs,
    interval: Duration,
    to: &Sink<Notice>,
) {
    let mut wait = CLOSED[0];
    let mut gpus: Option<Known> = None;
    loop {
        let round = Instant::now();
        let opened = gpus.is_none();
        let told = match library.is_closed() {
            // Closed on purpose: nobody is to think that it hangs.
            true => Ok(true),
            false => poll(library, numbering, &mut gpus, to),
        };
        if opened && gpus.is_some() {
            // After the first polls, which are not to wait for it.
            report_hardware(library, numbering, sysfs, to);
        }
        let pause = match told {
            Ok(closed) => {
                wait = CLOSED[0];
                if !to.send(Notice::Polled) {
                    return;
                }
                match closed {
                    true => Duration::from_millis(100),
                    false => interval.saturating_sub(round.elapsed()),
                }
            }
            Err(e) => {
                gpus = None;
                library.forget();
                if !to.send(Notice::Library(Err(e.to_string()))) {
                    return;
                }
                let now = wait;
                wait = (wait * 2).min(CLOSED[1]);
                now
            }
        };
        numbering.rest(pause);
    }
}

/// Looks at what the node is made of. Where that fails, polls say why.
fn report_hardware(library: &Library, numbering: &Numbering, sysfs: &Sysfs, to: &Sink<Notice>) {
    let (Ok(nvml), Ok(order)) = (library.get(), numbering.order()) else {
        return;
    };
    if let Ok(found) = discover(&*nvml, sysfs, &order) {
        let _ = to.send(Notice::Hardware(Box::new(found)));
    }
}

/// One round. `true`: the library is closed for a reset.
fn poll(
    library: &Library,
    numbering: &Numbering,
    gpus: &mut Option<Known>,
    to: &Sink<Notice>,
) -> Answer<bool> {
    let at = numbering.at();
    let nvml = match library.get() {
        Ok(nvml) => nvml,
        Err(Error::InUse) => return Ok(true),
        Err(e) => return Err(e),
    };
    let list = match gpus {
        Some((of, list)) if *of == at => list,
        _ => {
            let list = all(&*nvml, numbering, at.0)?;
            let before = gpus.as_ref();
            if before.is_none_or(|(of, before)| of.0 != at.0 || *before != list) {
                let _ = to.send(Notice::Library(Ok(list.clone())));
            }
            &mut gpus.insert((at, list)).1
        }
    };
    let mut silent: Option<Error> = None;
    let mut without = Vec::new();
    let mut spoke = list.is_empty();
    for gpu in list.iter() {
        let event = match nvml.sample(gpu.nvml.into()) {
            Ok(told) => health::Event::Sample {
                gpu: gpu.number,
                sample: Box::new(told),
            },
            Err(Error::Lost) => health::Event::Lost { gpu: gpu.number },
            Err(e) => {
                silent = Some(e);
                without.push(gpu.number);
                continue;
            }
        };
        spoke = true;
        let _ = to.send(Notice::Health(event));
    }
    match silent {
        Some(e) if !spoke => Err(e),
        _ => {
            for gpu in without {
                let _ = to.send(Notice::Health(health::Event::Silent { gpu }));
            }
            Ok(false)
        }
    }
}

fn wait_on(library: &Library, numbering: &Numbering, to: &Sink<Notice>) {
    let mut order: Option<Known> = None;
    let mut heard = false;
    loop {
        match wait_once(library, numbering, &mut order, to) {
            Ok(()) if !heard => {
                heard = true;
                tracing::info!("NVML's events are heard");
            }
            Ok(()) => {}
            Err(e) => {
                (order, heard) = (None, false);
                // The polling thread says what is wrong with the library.
                tracing::debug!("no events: {e}");
                thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

fn wait_once(
    library: &Library,
    numbering: &Numbering,
    order: &mut Option<Known>,
    to: &Sink<Notice>,
) -> Answer<()> {
    let at = numbering.at();
    let nvml = library.get()?;
    let list = match order {
        Some((of, list)) if *of == at => list,
        _ => {
            let list = all(&*nvml, numbering, at.0)?;
            &mut order.insert((at, list)).1
        }
    };
    for event in nvml.wait_events(WAIT)? {
        if event.what == Happening::MigChanged {
            if let Ok(gpu) = event.gpu.try_into() {
                let _ = to.send(Notice::Divided(gpu));
            }
            continue;
        }
        let Some(gpu) = list.iter().find(|gpu| u8::from(gpu.nvml) == event.gpu) else {
            continue;
        };
        let gpu = gpu.number;
        let told = match event.what {
            Happening::Xid {
                code,
                gpu_instance,
                compute_instance,
            } => health::Event::Xid {
                gpu,
                code,
                gpu_instance,
                compute_instance,
                pid: None,
            },
            Happening::Lost => health::Event::Lost { gpu },
            Happening::RecoveryAction => match nvml.recovery_action(event.gpu) {
                Ok(action) => health::Event::RecoveryAction { gpu, action },
                Err(_) => continue,
            },
            // The next poll counts them.
            Happening::Ecc { .. } | Happening::MigChanged | Happening::Other(_) => continue,
        };
        let _ = to.send(Notice::Health(told));
    }
    Ok(())
}
