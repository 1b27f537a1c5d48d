//! A thread that sets power limits and clocks: NVIDIA's library may take its time, or hang.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::limits::{Board, Clocks, Event, Setting};
use gpuos_host::hardware::nvml::{Error, GpuLibrary};

use crate::gpus::{GpuIdentity, Library};
use crate::sink::Sink;

/// How long a library that is closed for a reset of another GPU is waited for.
const RESET: Duration = Duration::from_secs(120);
/// Wait between two looks at it.
const PAUSE: Duration = Duration::from_millis(100);

/// One thing to do.
#[derive(Clone, Debug)]
pub enum Task {
    /// What a GPU shows before it is set.
    Read(GpuIdentity),
    /// Sets it.
    Set(GpuIdentity, Setting),
    /// Which power limit was set last: the one in force may be lower for reasons of the board's own.
    ReadLimit(GpuIdentity),
}

/// Starts the thread.
///
/// # Errors
/// The thread cannot be made.
pub fn start(library: Arc<Library>, to: Sink<Event>) -> std::io::Result<Sender<Task>> {
    let (tasks, from) = channel();
    let run = move || {
        for task in from {
            if let Some(event) = event(&library, &task)
                && !to.send(event)
            {
                return;
            }
        }
    };
    thread::Builder::new().name("limits".into()).spawn(run)?;
    Ok(tasks)
}

fn event(library: &Library, task: &Task) -> Option<Event> {
    let (Task::Read(found) | Task::Set(found, _) | Task::ReadLimit(found)) = task;
    // GPUs of a pool have no limits.
    let gpu = found.number.gres()?;
    match task {
        Task::Read(_) => Some(Event::Read {
            gpu,
            result: with(library, found, |nvml| read(nvml, found.nvml.into())),
        }),
        Task::Set(_, set) => Some(Event::Done {
            gpu,
            result: with(library, found, |nvml| apply(nvml, found.nvml.into(), *set)),
        }),
        Task::ReadLimit(_) => {
            let told = with(library, found, |nvml| {
                nvml.power_limit_mw(found.nvml.into())
            });
            told.ok().map(|limit_mw| Event::Sample { gpu, limit_mw })
        }
    }
}

/// Does something with a GPU, once the library is open and shows the GPU that is meant.
fn with<T>(
    library: &Library,
    found: &GpuIdentity,
    work: impl FnOnce(&dyn GpuLibrary) -> Result<T, Error>,
) -> Result<T, String> {
    let deadline = Instant::now() + RESET;
    let nvml = loop {
        match library.get() {
            Err(Error::InUse) if Instant::now() < deadline => thread::sleep(PAUSE),
            told => break told.map_err(|e| e.to_string())?,
        }
    };
    let identity = nvml
        .identity(found.nvml.into())
        .map_err(|e| e.to_string())?;
    if identity.uuid != found.uuid {
        return Err(format!(
            "it is {} now and was {}",
            identity.uuid, found.uuid
        ));
    }
    work(&*nvml).map_err(|e| e.to_string())
}

fn read(nvml: &dyn GpuLibrary, gpu: u8) -> Result<Board, Error> {
    let identity = nvml.identity(gpu)?;
    let limit_mw = match nvml.power_limit_mw(gpu) {
        Ok(limit) => Some(limit),
        Err(e) if e.is_absence() => None,
        Err(e) => return Err(e),
    };
    Ok(Board {
        limit_mw,
        limits_mw: identity.power_limits_mw,
        // What a driver does not tell it decides itself.
        clocks_mhz: nvml
            .clock_range_mhz(gpu)
            .ok()
            .filter(|[least, most]| 0 < *least && least <= most),
        divided: identity.mig.is_some_and(|mig| mig.on),
    })
}

fn apply(nvml: &dyn GpuLibrary, gpu: u8, set: Setting) -> Result<(), Error> {
    if let Some(power) = set.power_mw {
        nvml.set_power_limit_mw(gpu, power)?;
    }
    match set.clocks {
        Clocks::Leave => Ok(()),
        Clocks::Lock(range) => nvml.lock_clocks(gpu, range.least, range.most),
        Clocks::Unlock => match nvml.unlock_clocks(gpu) {
            // What cannot be locked is not locked.
            Err(e) if e.is_absence() => Ok(()),
            told => told,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use gpuos_core::limits::ClockRange;
    use gpuos_host::hardware::nvml::Twin;
    use gpuos_model::gpu_index::GresGpu;
    use gpuos_model::node_gpu::NodeGpu;

    use super::*;

    #[test]
    fn a_gpu_is_read_set_and_unset_and_another_one_in_its_place_is_left_alone() {
        let twin = Arc::new(Twin::of(
            &gpuos_model::node_types::by_name("dgx-h100").unwrap(),
        ));
        let uuid = twin.identity(3).unwrap().uuid;
        let own: Arc<Mutex<Arc<dyn GpuLibrary>>> = Arc::new(Mutex::new(twin.clone()));
        let library = Library::new(Box::new(move || Ok(own.lock().unwrap().clone())));
        let five = GresGpu::new(5).unwrap();
        let mut found = GpuIdentity {
            number: NodeGpu::Gres(five),
            nvml: 3.try_into().unwrap(),
            uuid,
            name: String::new(),
            pci: String::new(),
        };
        let board = match event(&library, &Task::Read(found.clone())) {
            Some(Event::Read { gpu, result: told }) if gpu == five => told.unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(board.limit_mw, Some(700_000));
        let range = ClockRange {
            least: 1200,
            most: 1500,
        };
        let set = |power_mw, clocks| Setting {
            power_mw: Some(power_mw),
            clocks,
        };
        let done = |task: &Task| match event(&library, task) {
            Some(Event::Done { gpu, result: told }) if gpu == five => told,
            other => panic!("{other:?}"),
        };
        let lock = set(300_000, Clocks::Lock(range));
        assert_eq!(done(&Task::Set(found.clone(), lock)), Ok(()));
        let read = event(&library, &Task::ReadLimit(found.clone()));
        let limit_mw = 300_000;
        assert_eq!(
            read,
            Some(Event::Sample {
                gpu: five,
                limit_mw
            })
        );
        twin.change(3, |gpu| assert_eq!(gpu.clocks, Some((1200, 1500))));
        let free = set(700_000, Clocks::Unlock);
        assert_eq!(done(&Task::Set(found.clone(), free)), Ok(()));
        twin.change(3, |gpu| assert_eq!(gpu.clocks, None));
        let much = done(&Task::Set(found.clone(), set(900_000, Clocks::Leave)));
        assert!(much.unwrap_err().contains("175 W to 700 W"));
        found.uuid = "GPU-other".into();
        assert!(
            done(&Task::Set(found, free))
                .unwrap_err()
                .contains("was GPU-other")
        );
    }
}
