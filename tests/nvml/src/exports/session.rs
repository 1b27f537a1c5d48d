//! Between `nvmlInit` and `nvmlShutdown`: the open state, and how calls reach it. Time that a call
//! takes, hangs and timeouts are served here, without the lock.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpuInstance_t, nvmlReturn_t};

use super::call::{Answer, code};
use super::handle::{Target, device, gpu_instance};
use super::pointer::Out;
use crate::latency::Cost;
use crate::model::{Board, Kind};
use crate::state::{ComputeInstance, Gpu, GpuInstance, Node, Shared, is_root, now_us};

/// Names the state file.
pub(crate) const STATE: &str = "GPUOS_NVML_STATE";

struct Session {
    /// `nvmlInit` calls without their `nvmlShutdown`.
    opened: u32,
    shared: Arc<Shared>,
}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

fn session<R>(work: impl FnOnce(&mut Option<Session>) -> R) -> R {
    // A panic elsewhere leaves a whole Option behind.
    work(&mut SESSION.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Opens the state for this process, once more.
pub(crate) fn open() -> Answer<()> {
    let shared = session(|session| {
        if let Some(session) = session {
            session.opened += 1;
            return Ok::<_, nvmlReturn_t>(None);
        }
        // Without a state there is no driver on this machine.
        let path = std::env::var_os(STATE)
            .map(PathBuf::from)
            .ok_or(code::NO_DRIVER)?;
        let opened = Shared::open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => code::OTHER_DRIVER,
            std::io::ErrorKind::PermissionDenied => code::NO_PERMISSION,
            _ => code::NO_DRIVER,
        })?;
        let shared = Arc::new(opened);
        *session = Some(Session {
            opened: 1,
            shared: Arc::clone(&shared),
        });
        Ok(Some(shared))
    })?;
    if let Some(shared) = shared {
        serve(&shared, Cost::Init, None);
    }
    Ok(())
}

/// Takes one [`open`] back.
pub(crate) fn close() -> Answer<()> {
    session(|session| {
        let open = session.as_mut().ok_or(code::UNINITIALIZED)?;
        open.opened -= 1;
        if open.opened == 0 {
            *session = None;
        }
        Ok(())
    })
}

/// The open state.
pub(crate) fn shared() -> Answer<Arc<Shared>> {
    session(|session| session.as_ref().map(|s| Arc::clone(&s.shared))).ok_or(code::UNINITIALIZED)
}

/// Spends the time that the call takes, and that a hang of the library or of the GPU takes. Whoever
/// mends the hang ends it for those who wait, too.
fn serve(shared: &Shared, cost: Cost, gpu: Option<usize>) {
    let hang = || {
        shared.read(|node| {
            let of_gpu = gpu.and_then(|gpu| node.gpus().get(gpu));
            let until = node
                .hang_until_us
                .max(of_gpu.map_or(0, |gpu| gpu.hang_until_us));
            (until.saturating_sub(now_us()), node.real_latency != 0)
        })
    };
    let (_, slow) = hang();
    if slow || std::env::var_os("GPUOS_NVML_LATENCY").is_some_and(|v| v == "1") {
        std::thread::sleep(cost.time());
    }
    loop {
        let seen = shared.changes();
        let (left, _) = hang();
        if left == 0 {
            return;
        }
        shared.wait(seen, Duration::from_micros(left));
    }
}

/// A call about the node.
pub(crate) fn node<R>(cost: Cost, look: impl FnOnce(&Node) -> Answer<R>) -> Answer<R> {
    let shared = shared()?;
    serve(&shared, cost, None);
    shared.read(look)
}

/// One GPU, with what it is.
pub(crate) struct View<'a> {
    /// Its index.
    pub(crate) index: usize,
    /// The GPU.
    pub(crate) gpu: &'a Gpu,
    /// Its board.
    pub(crate) board: &'static Board,
    /// The kind of node.
    pub(crate) kind: &'static Kind,
    /// The node.
    pub(crate) node: &'a Node,
}

/// A MIG device: its GPU, GPU instance and compute instance.
pub(crate) struct Part<'a> {
    /// The GPU.
    pub(crate) whole: View<'a>,
    /// The two instances; `None` for the handle of a whole GPU.
    pub(crate) mig: Option<(&'a GpuInstance, &'a ComputeInstance)>,
}

/// Whether the GPU answers at all.
fn alive(gpu: &Gpu) -> Answer<()> {
    match gpu {
        Gpu { lost: 1.., .. } => Err(code::LOST),
        Gpu {
            driver_timeout: 1..,
            ..
        } => Err(code::TIMEOUT),
        _ => Ok(()),
    }
}

fn view(node: &Node, index: usize) -> Answer<View<'_>> {
    let gpu = node.gpus().get(index).ok_or(code::INVALID)?;
    alive(gpu)?;
    let kind = node.model();
    Ok(View {
        index,
        gpu,
        board: kind.board(),
        kind,
        node,
    })
}

/// A call about the GPU or MIG device that a handle means.
pub(crate) fn part<R>(
    handle: nvmlDevice_t,
    cost: Cost,
    look: impl FnOnce(Part<'_>) -> Answer<R>,
) -> Answer<R> {
    let shared = shared()?;
    let target = device(handle)?;
    let (Target::Gpu(index) | Target::Mig(index, _)) = target;
    serve(&shared, cost, Some(index));
    shared.read(|node| {
        let whole = view(node, index)?;
        let mig = match target {
            Target::Gpu(_) => None,
            Target::Mig(_, serial) => Some(whole.gpu.mig_device(serial).ok_or(code::NOT_FOUND)?),
        };
        look(Part { whole, mig })
    })
}

/// A call about a whole GPU; MIG devices do not support it.
pub(crate) fn gpu<R>(
    handle: nvmlDevice_t,
    cost: Cost,
    look: impl FnOnce(View<'_>) -> Answer<R>,
) -> Answer<R> {
    part(handle, cost, |part| match part.mig {
        None => look(part.whole),
        Some(_) => Err(code::UNSUPPORTED),
    })
}

/// A change of a whole GPU.
pub(crate) fn change<R>(
    handle: nvmlDevice_t,
    cost: Cost,
    change: impl FnOnce(&mut Node, usize) -> Answer<R>,
) -> Answer<R> {
    let shared = shared()?;
    let Target::Gpu(index) = device(handle)? else {
        return Err(code::UNSUPPORTED);
    };
    update(&shared, index, cost, change)
}

/// The same by index.
pub(crate) fn update<R>(
    shared: &Shared,
    index: usize,
    cost: Cost,
    change: impl FnOnce(&mut Node, usize) -> Answer<R>,
) -> Answer<R> {
    serve(shared, cost, Some(index));
    shared.update(|node| {
        view(node, index)?;
        change(node, index)
    })
}

/// A change of a setting, which is root's.
pub(crate) fn set(
    handle: nvmlDevice_t,
    change_it: impl FnOnce(&mut Gpu, &'static Board) -> Answer<()>,
) -> Answer<()> {
    root_only(handle)?;
    change(handle, Cost::Set, |node, index| {
        let board = node.model().board();
        let gpu = &mut node.gpus_mut()[index];
        gpu.settle(board, now_us());
        change_it(gpu, board)
    })
}

/// Fails unless the handle is a device's and the process is root's.
pub(crate) fn root_only(handle: nvmlDevice_t) -> Answer<()> {
    shared()?;
    device(handle)?;
    match is_root() {
        true => Ok(()),
        false => Err(code::NO_PERMISSION),
    }
}

/// Answers a query of a whole GPU with one value.
pub(crate) fn answer<T>(
    handle: nvmlDevice_t,
    out: &Out<T>,
    cost: Cost,
    look: impl FnOnce(View<'_>) -> Answer<T>,
) -> Answer<()> {
    shared()?;
    if out.is_null() {
        return Err(code::INVALID);
    }
    out.set(gpu(handle, cost, look)?)
}

/// A call about a GPU instance.
pub(crate) fn instance<R>(
    handle: nvmlGpuInstance_t,
    cost: Cost,
    look: impl FnOnce(View<'_>, &GpuInstance) -> Answer<R>,
) -> Answer<R> {
    let shared = shared()?;
    let (index, serial) = gpu_instance(handle)?;
    serve(&shared, cost, Some(index));
    shared.read(|node| {
        let view = view(node, index)?;
        let instance = view.gpu.instance(serial).ok_or(code::NOT_FOUND)?;
        look(view, instance)
    })
}
