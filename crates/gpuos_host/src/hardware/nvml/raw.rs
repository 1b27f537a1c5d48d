//! The C functions of the library that gpuos calls, with Rust's types. All unsafe code of the
//! adapter is here and, for MIG and GPM, in [`super::raw_mig`] and [`super::raw_gpm`]; it relies on this:
//!
//! - `nvml-wrapper-sys` gives every function the signature of NVIDIA's header, and NVML keeps signatures
//!   of a versioned name for ever. What is opened is the driver's library, or one that a person named.
//! - Out parameters are locals of the signature's type, or buffers whose length goes along.
//! - Handles come from the library only ([`Device`], [`Set`] and those of MIG cannot be made elsewhere). NVML checks them,
//!   also after `nvmlShutdown`, and may be called by any number of threads at once.
//! - Structures of NVML are numbers, arrays of numbers, handles and pointers: all zeroes is a value of each.

#![allow(unsafe_code, reason = "C functions of a library opened at run time")]

use std::ffi::c_char;
use std::mem::MaybeUninit;

use nvml_wrapper_sys::bindings as nvml;

use super::error::{Answer, Error};

/// A GPU's handle, or that of a MIG device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Device(pub(super) nvml::nvmlDevice_t);

// SAFETY: a handle is a name; nothing here reads what it points to, and NVML takes it in any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// An event set's handle.
#[derive(Debug)]
pub(super) struct Set(nvml::nvmlEventSet_t);

// SAFETY: as for `Device`.
unsafe impl Send for Set {}

/// The library, opened and initialised.
pub(super) struct Raw {
    pub(super) library: nvml::NvmlLib,
}

/// A field value to ask for: its id and scope.
pub(super) type Ask = (u32, u32);

/// A structure of the bindings that is all numbers and pointers.
pub(super) trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for nvml::nvmlPciInfo_t {}
impl Plain for nvml::nvmlMemory_t {}
impl Plain for nvml::nvmlMemory_v2_t {}
impl Plain for nvml::nvmlUtilization_t {}
impl Plain for nvml::nvmlProcessInfo_t {}
impl Plain for nvml::nvmlGpuFabricInfo_t {}
impl Plain for nvml::nvmlGpuFabricInfo_v2_t {}
impl Plain for nvml::nvmlGpuFabricInfoV_t {}
impl Plain for nvml::nvmlEccSramErrorStatus_t {}
impl Plain for nvml::nvmlRowRemapperHistogramValues_t {}
impl Plain for nvml::nvmlTemperature_t {}
impl Plain for nvml::nvmlGpuInstanceProfileInfo_v2_t {}
impl Plain for nvml::nvmlGpuInstancePlacement_t {}
impl Plain for nvml::nvmlGpuInstanceInfo_t {}
impl Plain for nvml::nvmlComputeInstanceProfileInfo_t {}
impl Plain for nvml::nvmlComputeInstanceInfo_t {}
impl Plain for nvml::nvmlGpmSupport_t {}
impl Plain for nvml::nvmlGpmMetricsGet_t {}

pub(super) fn zeroed<T: Plain>() -> T {
    // SAFETY: all zeroes is a value of every `Plain` type: they hold numbers and pointers only.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// What structures with a version hold in their field `version`: size and number.
pub(super) fn version_of<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

pub(super) fn answer(call: &'static str, code: nvml::nvmlReturn_t) -> Answer<()> {
    Err(match code {
        nvml::nvmlReturn_enum_NVML_SUCCESS => return Ok(()),
        nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => Error::Closed,
        nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
        | nvml::nvmlReturn_enum_NVML_ERROR_NO_DATA => Error::NotSupported,
        nvml::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => Error::NoPermission,
        nvml::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => Error::NoDriver,
        nvml::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => Error::OtherDriver,
        nvml::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
        | nvml::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH => Error::Symbol(call),
        nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST
        | nvml::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND => Error::Lost,
        nvml::nvmlReturn_enum_NVML_ERROR_TIMEOUT => Error::Timeout,
        nvml::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => Error::ResetRequired,
        nvml::nvmlReturn_enum_NVML_ERROR_IN_USE => Error::InUse,
        nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES => Error::InsufficientResources,
        code => Error::Other { call, code },
    })
}

/// Calls a function, if the library has it.
macro_rules! call {
    ($raw:expr, $name:ident($($argument:expr),*)) => {
        match &$raw.library.$name {
            // SAFETY: see the top of the file: the signature is NVML's, pointers lead to locals that
            // live through the call, handles are NVML's own.
            Ok(function) => answer(stringify!($name), unsafe { function($($argument),*) }),
            Err(_) => Err(Error::Symbol(stringify!($name))),
        }
    };
}

pub(super) use call;

/// Functions of a GPU with one out parameter, after these arguments.
macro_rules! getters {
    ($($(#[$doc:meta])* $method:ident = $name:ident($($argument:ident),*) -> $type:ty;)*) => { $(
        $(#[$doc])*
        pub(super) fn $method(&self, device: Device $(, $argument: u32)*) -> Answer<$type> {
            let mut value: $type = zeroed();
            call!(self, $name(device.0 $(, $argument)*, &raw mut value)).map(|()| value)
        }
    )* };
}

/// Functions of a GPU with arguments only.
macro_rules! setters {
    ($($(#[$doc:meta])* $method:ident = $name:ident($($argument:ident),*);)*) => { $(
        $(#[$doc])*
        pub(super) fn $method(&self, device: Device $(, $argument: u32)*) -> Answer<()> {
            call!(self, $name(device.0 $(, $argument)*))
        }
    )* };
}

/// Texts of a GPU.
macro_rules! texts {
    ($($(#[$doc:meta])* $method:ident = $name:ident;)*) => { $(
        $(#[$doc])*
        pub(super) fn $method(&self, device: Device) -> Answer<String> {
            let mut buffer = [0; TEXT];
            call!(self, $name(device.0, buffer.as_mut_ptr(), TEXT as u32))?;
            Ok(text(&buffer))
        }
    )* };
}

/// Room for any text of NVML.
const TEXT: usize = 128;

/// The text in a buffer, up to its first NUL; what is no UTF-8 is replaced.
pub(super) fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer
        .iter()
        .map(|&c| u8::from_ne_bytes(c.to_ne_bytes()))
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Raw {
    /// Opens a library file, by path or by the name that the loader searches, and initialises it.
    pub(super) fn open(path: &str) -> Answer<Raw> {
        // SAFETY: code of the library's constructors runs: it is the driver's, or a person named it.
        let library = unsafe { nvml::NvmlLib::new(path) }.map_err(|error| Error::Missing {
            path: path.into(),
            reason: error.to_string(),
        })?;
        let raw = Raw { library };
        raw.init().map(|()| raw)
    }

    /// Initialises the library; counted, so that each needs its [`Raw::shutdown`].
    pub(super) fn init(&self) -> Answer<()> {
        call!(self, nvmlInit_v2())
    }

    /// Ends what [`Raw::init`] began. Handles are refused afterwards.
    pub(super) fn shutdown(&self) -> Answer<()> {
        call!(self, nvmlShutdown())
    }

    /// Version of the driver.
    pub(super) fn driver_version(&self) -> Answer<String> {
        let mut buffer = [0; TEXT];
        call!(
            self,
            nvmlSystemGetDriverVersion(buffer.as_mut_ptr(), TEXT as u32)
        )?;
        Ok(text(&buffer))
    }

    /// How many GPUs there are.
    pub(super) fn count(&self) -> Answer<u32> {
        let mut count = 0;
        call!(self, nvmlDeviceGetCount_v2(&raw mut count)).map(|()| count)
    }

    /// The handle of a GPU.
    pub(super) fn device(&self, index: u32) -> Answer<Device> {
        let mut handle = std::ptr::null_mut();
        call!(self, nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle))?;
        Ok(Device(handle))
    }

    getters! {
        /// Index of a handle.
        index = nvmlDeviceGetIndex() -> u32;
        /// N of /dev/nvidiaN.
        minor = nvmlDeviceGetMinorNumber() -> u32;
        /// PCI address and ids.
        pci = nvmlDeviceGetPciInfo_v3() -> nvml::nvmlPciInfo_t;
        /// Most MIG devices.
        max_mig_devices = nvmlDeviceGetMaxMigDeviceCount() -> u32;
        /// GPU instance of a MIG device.
        gpu_instance_id = nvmlDeviceGetGpuInstanceId() -> u32;
        /// Compute instance of a MIG device.
        compute_instance_id = nvmlDeviceGetComputeInstanceId() -> u32;
        /// Memory of drivers before version 2 of this.
        memory_v1 = nvmlDeviceGetMemoryInfo() -> nvml::nvmlMemory_t;
        /// Busy shares in percent.
        utilization = nvmlDeviceGetUtilizationRates() -> nvml::nvmlUtilization_t;
        /// Temperature, by sensor, of drivers before `nvmlDeviceGetTemperatureV`.
        temperature_v1 = nvmlDeviceGetTemperature(sensor) -> u32;
        /// A temperature threshold by kind.
        threshold = nvmlDeviceGetTemperatureThreshold(kind) -> u32;
        /// Power drawn, in milliwatts.
        power = nvmlDeviceGetPowerUsage() -> u32;
        /// The limit in force, in milliwatts.
        enforced_limit = nvmlDeviceGetEnforcedPowerLimit() -> u32;
        /// The limit that was set, in milliwatts.
        power_limit = nvmlDeviceGetPowerManagementLimit() -> u32;
        /// The board's default limit, in milliwatts.
        default_limit = nvmlDeviceGetPowerManagementDefaultLimit() -> u32;
        /// A clock in MHz, by domain.
        clock = nvmlDeviceGetClockInfo(domain) -> u32;
        /// Energy used since the driver was loaded, in millijoules.
        energy = nvmlDeviceGetTotalEnergyConsumption() -> u64;
        /// Why clocks are lower than they could be.
        reasons = nvmlDeviceGetCurrentClocksEventReasons() -> u64;
        /// The same under the name of drivers before 535.
        reasons_v1 = nvmlDeviceGetCurrentClocksThrottleReasons() -> u64;
        /// PCIe generation now.
        pcie_generation = nvmlDeviceGetCurrPcieLinkGeneration() -> u32;
        /// The highest PCIe generation of board and slot.
        pcie_generation_most = nvmlDeviceGetMaxPcieLinkGeneration() -> u32;
        /// PCIe lanes now.
        pcie_width = nvmlDeviceGetCurrPcieLinkWidth() -> u32;
        /// Most PCIe lanes of board and slot.
        pcie_width_most = nvmlDeviceGetMaxPcieLinkWidth() -> u32;
        /// Whether an NVLink is up.
        link_state = nvmlDeviceGetNvLinkState(link) -> u32;
        /// NVLink version.
        link_version = nvmlDeviceGetNvLinkVersion(link) -> u32;
        /// What kind of device is at the other end.
        link_peer_kind = nvmlDeviceGetNvLinkRemoteDeviceType(link) -> u32;
        /// PCI address of the other end.
        link_peer = nvmlDeviceGetNvLinkRemotePciInfo_v2(link) -> nvml::nvmlPciInfo_t;
        /// The fabric, of drivers before `nvmlDeviceGetGpuFabricInfoV`.
        fabric_v1 = nvmlDeviceGetGpuFabricInfo() -> nvml::nvmlGpuFabricInfo_t;
        /// Kinds of event that the GPU can report.
        event_kinds = nvmlDeviceGetSupportedEventTypes() -> u64;
    }

    setters! {
        /// Sets the power limit in milliwatts.
        set_power_limit = nvmlDeviceSetPowerManagementLimit(milliwatts);
        /// Locks the clock to a range in MHz.
        lock_clocks = nvmlDeviceSetGpuLockedClocks(least, most);
        /// Lets the clock go again.
        unlock_clocks = nvmlDeviceResetGpuLockedClocks();
    }

    texts! {
        /// `GPU-…`.
        uuid = nvmlDeviceGetUUID;
        /// Product name.
        name = nvmlDeviceGetName;
    }

    /// Least and greatest clock of the multiprocessors under load, in MHz.
    pub(super) fn clock_range(&self, device: Device) -> Answer<[u32; 2]> {
        let (mut least, mut most) = (0, 0);
        call!(
            self,
            nvmlDeviceGetMinMaxClockOfPState(
                device.0,
                nvml::nvmlClockType_enum_NVML_CLOCK_SM,
                nvml::nvmlPStates_enum_NVML_PSTATE_0,
                &raw mut least,
                &raw mut most
            )
        )?;
        Ok([least, most])
    }

    /// Memory: total and used, in bytes.
    pub(super) fn memory(&self, device: Device) -> Answer<[u64; 2]> {
        let mut memory = nvml::nvmlMemory_v2_t {
            version: version_of::<nvml::nvmlMemory_v2_t>(2),
            ..zeroed()
        };
        match call!(self, nvmlDeviceGetMemoryInfo_v2(device.0, &raw mut memory)) {
            Ok(()) => Ok([memory.total, memory.used]),
            Err(Error::Symbol(_)) => self.memory_v1(device).map(|m| [m.total, m.used]),
            Err(error) => Err(error),
        }
    }

    /// Temperature of the GPU in degrees Celsius.
    pub(super) fn temperature(&self, device: Device) -> Answer<i32> {
        let mut found = nvml::nvmlTemperature_t {
            version: version_of::<nvml::nvmlTemperature_t>(1),
            ..zeroed()
        };
        match call!(self, nvmlDeviceGetTemperatureV(device.0, &raw mut found)) {
            Ok(()) => Ok(found.temperature),
            Err(Error::Symbol(_)) => self.temperature_v1(device, 0).map(u32::cast_signed),
            Err(error) => Err(error),
        }
    }

    /// MIG mode: now, and after the next reset.
    pub(super) fn mig_mode(&self, device: Device) -> Answer<[bool; 2]> {
        let (mut now, mut pending) = (0, 0);
        call!(
            self,
            nvmlDeviceGetMigMode(device.0, &raw mut now, &raw mut pending)
        )?;
        Ok([now == 1, pending == 1])
    }

    /// Least and greatest power limit in milliwatts.
    pub(super) fn limits(&self, device: Device) -> Answer<[u32; 2]> {
        let (mut least, mut most) = (0, 0);
        let (first, second) = (&raw mut least, &raw mut most);
        call!(
            self,
            nvmlDeviceGetPowerManagementLimitConstraints(device.0, first, second)
        )?;
        Ok([least, most])
    }

    /// The fabric: state, cluster, clique.
    pub(super) fn fabric(&self, device: Device) -> Answer<(u8, [u8; 16], u32)> {
        // Version 2 is a prefix of version 3, which the signature names: the buffer is large enough.
        let mut info = nvml::nvmlGpuFabricInfoV_t {
            version: version_of::<nvml::nvmlGpuFabricInfo_v2_t>(2),
            ..zeroed()
        };
        match call!(self, nvmlDeviceGetGpuFabricInfoV(device.0, &raw mut info)) {
            Ok(()) => Ok((info.state, info.clusterUuid, info.cliqueId)),
            Err(Error::Symbol(_)) => {
                let info = self.fabric_v1(device)?;
                Ok((info.state, info.clusterUuid, info.cliqueId))
            }
            Err(error) => Err(error),
        }
    }

    /// Memory banks by the spare rows they have left: all, many, some, few, none.
    pub(super) fn banks(&self, device: Device) -> Answer<[u32; 5]> {
        let mut found: nvml::nvmlRowRemapperHistogramValues_t = zeroed();
        call!(
            self,
            nvmlDeviceGetRowRemapperHistogram(device.0, &raw mut found)
        )?;
        Ok([found.max, found.high, found.partial, found.low, found.none])
    }

    /// Whether uncorrected errors of on-chip memory passed the threshold.
    pub(super) fn sram_threshold(&self, device: Device) -> Answer<bool> {
        let mut status = nvml::nvmlEccSramErrorStatus_t {
            version: version_of::<nvml::nvmlEccSramErrorStatus_t>(1),
            ..zeroed()
        };
        call!(
            self,
            nvmlDeviceGetSramEccErrorStatus(device.0, &raw mut status)
        )?;
        Ok(status.bThresholdExceeded != 0)
    }

    /// The PCIe path between two GPUs, as `nvmlGpuTopologyLevel_t`.
    pub(super) fn ancestor(&self, a: Device, b: Device) -> Answer<u32> {
        let mut level = 0;
        call!(
            self,
            nvmlDeviceGetTopologyCommonAncestor(a.0, b.0, &raw mut level)
        )
        .map(|()| level)
    }

    /// NUMA nodes near the GPU.
    pub(super) fn numa(&self, device: Device) -> Answer<Vec<u32>> {
        let mut words = [0; WORDS];
        let (buffer, scope) = (words.as_mut_ptr(), nvml::NVML_AFFINITY_SCOPE_NODE);
        call!(
            self,
            nvmlDeviceGetMemoryAffinity(device.0, WORDS as u32, buffer, scope)
        )?;
        Ok(numbers(&words))
    }

    /// CPUs near the GPU.
    pub(super) fn cpus(&self, device: Device) -> Answer<Vec<u32>> {
        let mut words = [0; WORDS];
        call!(
            self,
            nvmlDeviceGetCpuAffinity(device.0, WORDS as u32, words.as_mut_ptr())
        )?;
        Ok(numbers(&words))
    }

    /// Field values, each with its own error.
    pub(super) fn fields(&self, device: Device, asked: &[Ask]) -> Answer<Vec<Answer<u64>>> {
        let mut values: Vec<nvml::nvmlFieldValue_t> = asked
            .iter()
            .map(|&(field, scope)| nvml::nvmlFieldValue_t {
                fieldId: field,
                scopeId: scope,
                timestamp: 0,
                latencyUsec: 0,
                valueType: 0,
                nvmlReturn: nvml::nvmlReturn_enum_NVML_ERROR_UNKNOWN,
                value: nvml::nvmlValue_t { ullVal: 0 },
            })
            .collect();
        let buffer = values.as_mut_ptr();
        call!(
            self,
            nvmlDeviceGetFieldValues(device.0, asked.len() as i32, buffer)
        )?;
        let one = |value: &nvml::nvmlFieldValue_t| {
            answer("nvmlDeviceGetFieldValues", value.nvmlReturn)?;
            // SAFETY: every member of the union is plain bits, and all 8 bytes were set above.
            let bits = unsafe { value.value.ullVal };
            Ok(match value.valueType {
                nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT
                | nvml::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => bits & 0xFFFF_FFFF,
                nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => bits & 0xFFFF,
                nvml::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE => f64::from_bits(bits) as u64,
                _ => bits,
            })
        };
        Ok(values.iter().map(one).collect())
    }

    /// Processes: those of CUDA, or of MPS clients.
    pub(super) fn processes(
        &self,
        device: Device,
        mps: bool,
    ) -> Answer<Vec<nvml::nvmlProcessInfo_t>> {
        // Processes start between the calls: the room grows until it is enough.
        let mut room = 64;
        loop {
            let mut count = room;
            let mut list = vec![zeroed::<nvml::nvmlProcessInfo_t>(); room as usize];
            let (out, buffer) = (&raw mut count, list.as_mut_ptr());
            let done = match mps {
                false => call!(
                    self,
                    nvmlDeviceGetComputeRunningProcesses_v3(device.0, out, buffer)
                ),
                true => {
                    call!(
                        self,
                        nvmlDeviceGetMPSComputeRunningProcesses_v3(device.0, out, buffer)
                    )
                }
            };
            match done {
                Ok(()) => {
                    list.truncate(count as usize);
                    return Ok(list);
                }
                Err(Error::Other { code, .. })
                    if code == nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE
                        && room < 1 << 16 =>
                {
                    room = (room * 2).max(count.min(1 << 16));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A new event set.
    pub(super) fn new_set(&self) -> Answer<Set> {
        let mut set = std::ptr::null_mut();
        call!(self, nvmlEventSetCreate(&raw mut set)).map(|()| Set(set))
    }

    /// Adds kinds of event of a GPU to a set.
    pub(super) fn register(&self, device: Device, kinds: u64, set: &Set) -> Answer<()> {
        call!(self, nvmlDeviceRegisterEvents(device.0, kinds, set.0))
    }

    /// Waits for an event; `None` when none came.
    pub(super) fn wait(&self, set: &Set, milliseconds: u32) -> Answer<Option<Event>> {
        let mut data = nvml::nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: u32::MAX,
            computeInstanceId: u32::MAX,
        };
        match call!(
            self,
            nvmlEventSetWait_v2(set.0, &raw mut data, milliseconds)
        ) {
            Ok(()) => Ok(Some(Event {
                device: Device(data.device),
                kind: data.eventType,
                data: data.eventData,
                instances: [data.gpuInstanceId, data.computeInstanceId],
            })),
            Err(Error::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees a set.
    pub(super) fn free(&self, set: Set) {
        // Nothing can be done about an error: the set is gone either way.
        let _ = call!(self, nvmlEventSetFree(set.0));
    }
}

/// An event as the library gives it.
pub(super) struct Event {
    /// Whose it is.
    pub device: Device,
    /// `nvmlEventType*`, one bit.
    pub kind: u64,
    /// The Xid, for Xid events.
    pub data: u64,
    /// GPU and compute instance, or `u32::MAX`.
    pub instances: [u32; 2],
}

/// Words of a bitmap: CPUs of the largest machine, 4,096.
const WORDS: usize = 64;

fn numbers(words: &[std::ffi::c_ulong]) -> Vec<u32> {
    let bits = std::ffi::c_ulong::BITS as usize;
    (0..words.len() * bits)
        .filter(|n| words[n / bits] >> (n % bits) & 1 == 1)
        .map(|n| n as u32)
        .collect()
}
