//! The one driver of the process, from `cuInit` on.

use std::cell::Cell;
use std::sync::{Arc, Mutex, OnceLock};

use nvidia_ml::model::{Board, KINDS, Kind, kind_named};
use nvidia_ml::state::{Options, Shared, node};

use crate::abi::{Answer, code};
use crate::engine::checkpoint;
use crate::engine::context::Context;
use crate::engine::device::{Device, Primary, Rates};
use crate::engine::event::Event;
use crate::engine::graph::{Exec, Graph};
use crate::engine::heap::Allocations;
use crate::engine::image::{Entry, Image};
use crate::engine::stream::{Stream, Unfinished};
use crate::ledger::Ledger;
use crate::memory::{Memory, Place};
use crate::setup::{Setup, setup};
use crate::space::Space;
use crate::table::Table;

/// A memory pool: its device and the attributes that were set.
pub(crate) struct Pool {
    pub(crate) device: usize,
    pub(crate) attributes: Mutex<[u64; 9]>,
}

/// The driver.
pub(crate) struct Driver {
    process: u32,
    pub(crate) devices: Vec<Arc<Device>>,
    pub(crate) ledger: Arc<Ledger>,
    /// Host memory for virtual memory.
    pub(crate) host: Arc<Memory>,
    pub(crate) space: Space,
    pub(crate) allocations: Allocations,
    pub(crate) unfinished: Unfinished,
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) images: Table<Image>,
    pub(crate) functions: Table<Entry>,
    pub(crate) graphs: Table<Graph>,
    /// The graph that each node is of.
    pub(crate) nodes: Table<u64>,
    pub(crate) execs: Table<Exec>,
    pub(crate) pools: Table<Pool>,
    pub(crate) links: Table<crate::engine::exports::Link>,
    pub(crate) handles: crate::engine::exports::Handles,
}

static DRIVER: OnceLock<Answer<Driver>> = OnceLock::new();

thread_local! {
    /// Whether the thread runs a function of the program that a stream called.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program on a stream's thread: it must not call the driver.
pub(crate) fn calling(function: impl FnOnce()) {
    CALLING.set(true);
    function();
    CALLING.set(false);
}

/// The driver, once `cuInit` succeeded. A child of `fork` has none: what it inherited is its parent's.
pub(crate) fn driver() -> Answer<&'static Driver> {
    if CALLING.get() {
        return Err(code::NOT_PERMITTED);
    }
    let driver = DRIVER.get().ok_or(code::NOT_INITIALIZED)?;
    let driver = driver.as_ref().map_err(|error| *error)?;
    match driver.process == std::process::id() {
        true => Ok(driver),
        false => Err(code::NOT_INITIALIZED),
    }
}

/// `cuInit`.
pub(crate) fn init() -> Answer<()> {
    let setup = setup().ok_or(code::NOT_READY_SYSTEM)?;
    let made = DRIVER.get_or_init(|| make(setup));
    if let Ok(driver) = made {
        for device in &driver.devices {
            let mut pools = device.pools.lock().unwrap_or_else(|e| e.into_inner());
            if pools[0] == 0 {
                *pools = [driver.pools.add(Pool {
                    device: device.index,
                    attributes: Mutex::new([0; 9]),
                }); 2];
            }
        }
    }
    let driver = driver()?;
    checkpoint::begin(driver, setup.checkpoint);
    Ok(())
}

fn make(setup: &Setup) -> Answer<Driver> {
    let wrong = |what: &str, error: &dyn std::fmt::Display| {
        eprintln!("simulated libcuda: {what}: {error}");
        code::NOT_READY_SYSTEM
    };
    let shared = match &setup.state {
        None => None,
        Some(path) if !path.exists() => {
            eprintln!(
                "simulated libcuda: {}: there is no such file, so there is no device",
                path.display()
            );
            return Err(code::NO_DEVICE);
        }
        Some(path) => {
            let shared = Shared::open(path);
            Some(shared.map_err(|error| wrong(&path.display().to_string(), &error))?)
        }
    };
    let gpus = match &shared {
        Some(shared) => shared.read(|node| gpus(node.model(), node, node.gpus().len())),
        None => {
            let (index, kind) = kind_named("dgx-h100").unwrap_or((0, &KINDS[0]));
            gpus(kind, &node(index, kind, Options::default()), setup.devices)
        }
    };
    let ledger = Arc::new(Ledger::new(shared, gpus.len()));
    let mut devices = Vec::new();
    for number in visible(setup.visible.as_deref(), &gpus) {
        let gpu = &gpus[number];
        let index = devices.len();
        let capacity = setup
            .memory
            .map_or(gpu.memory, |memory| memory.min(gpu.memory));
        let memory = Memory::new(Place::Device(index), number, capacity, Arc::clone(&ledger));
        devices.push(Arc::new(Device {
            index,
            number,
            board: gpu.board,
            uuid: gpu.uuid,
            bus: gpu.bus,
            memory: Arc::new(memory.map_err(|error| wrong("device memory", &error))?),
            rates: Rates::new(setup.hbm, setup.link),
            primary: Mutex::new(Primary::default()),
            pools: Mutex::new([0; 2]),
        }));
    }
    if devices.is_empty() {
        return Err(code::NO_DEVICE);
    }
    let host = Memory::new(Place::Host, 0, setup.host, Arc::clone(&ledger));
    Ok(Driver {
        process: std::process::id(),
        devices,
        ledger,
        host: Arc::new(host.map_err(|error| wrong("host memory", &error))?),
        space: Space::new().map_err(|error| wrong("addresses", &error))?,
        allocations: Allocations::new(),
        unfinished: Unfinished::new(),
        contexts: Table::new(0x11),
        streams: Table::new(0x12),
        events: Table::new(0x13),
        images: Table::new(0x14),
        functions: Table::new(0x15),
        graphs: Table::new(0x16),
        nodes: Table::new(0x17),
        execs: Table::new(0x18),
        pools: Table::new(0x19),
        links: Table::new(0x1a),
        handles: crate::engine::exports::Handles::new(),
    })
}

struct Gpu {
    board: &'static Board,
    uuid: [u8; 16],
    bus: u8,
    memory: u64,
}

fn gpus(kind: &'static Kind, node: &nvidia_ml::state::Node, count: usize) -> Vec<Gpu> {
    let board = kind.board();
    let of = |number: usize| Gpu {
        board,
        uuid: node
            .gpus()
            .get(number)
            .map_or([number as u8; 16], |gpu| gpu.uuid),
        bus: kind.buses.get(number).copied().unwrap_or(number as u8),
        memory: (kind.gpu_memory_mib() - board.reserved_mib) << 20,
    };
    (0..count).map(of).collect()
}

/// The devices that `CUDA_VISIBLE_DEVICES` names, by number or beginning of the UUID. As in CUDA, the first
/// that is none ends the list.
fn visible(text: Option<&str>, gpus: &[Gpu]) -> Vec<usize> {
    let Some(text) = text else {
        return (0..gpus.len()).collect();
    };
    let mut found = Vec::new();
    for word in text.split(',').map(str::trim) {
        let by_number = word
            .parse::<usize>()
            .ok()
            .filter(|number| *number < gpus.len());
        let by_uuid = || {
            let digits = word.strip_prefix("GPU-")?.replace('-', "");
            let uuid = |gpu: &Gpu| {
                gpu.uuid
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>()
            };
            gpus.iter()
                .position(|gpu| uuid(gpu).starts_with(&digits.to_lowercase()))
        };
        match by_number.or_else(by_uuid) {
            Some(number) if !found.contains(&number) => found.push(number),
            _ => break,
        }
    }
    found
}

impl Driver {
    /// The device with this ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Answer<&Arc<Device>> {
        let index = usize::try_from(ordinal).map_err(|_| code::INVALID_DEVICE)?;
        self.devices.get(index).ok_or(code::INVALID_DEVICE)
    }
}
