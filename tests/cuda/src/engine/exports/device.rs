//! Devices: count, names, attributes.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;

use super::cuda;
use crate::abi::{Answer, code};
use crate::engine::device::Device;
use crate::engine::driver::driver;
use crate::pointer::{Chars, Name, Out};

fn device(ordinal: c_int) -> Answer<&'static Arc<Device>> {
    driver()?.device(ordinal)
}

fn bus_id(device: &Device) -> String {
    format!("0000:{:02x}:00.0", device.bus)
}

/// Attributes that are the same for all boards, by their numbers in cuda.h. Figures of GH100 where they
/// differ between boards (CUDA C++ Programming Guide, compute capabilities).
const SAME: &[(c_int, c_int)] = &[
    (1, 1024),        // threads of a block
    (2, 1024),        // block, x
    (3, 1024),        // block, y
    (4, 64),          // block, z
    (5, c_int::MAX),  // grid, x
    (6, 65535),       // grid, y
    (7, 65535),       // grid, z
    (8, 49152),       // shared memory of a block
    (9, 65536),       // constant memory
    (10, 32),         // warp
    (11, c_int::MAX), // pitch
    (12, 65536),      // registers of a block
    (14, 512),        // alignment of textures
    (15, 1),          // copies beside kernels
    (17, 0),          // time limit of kernels
    (18, 0),          // integrated
    (19, 1),          // maps host memory
    (20, 0),          // compute mode
    (31, 1),          // kernels side by side
    (32, 1),          // ECC
    (34, 0),          // PCI device
    (35, 0),          // TCC
    (38, 50 << 20),   // L2
    (39, 2048),       // threads of a multiprocessor
    (40, 3),          // copy engines
    (41, 1),          // unified addresses
    (50, 0),          // PCI domain
    (78, 1),          // priorities of streams
    (81, 233_472),    // shared memory of a multiprocessor
    (82, 65536),      // registers of a multiprocessor
    (83, 1),          // managed memory
    (84, 0),          // on a board with others
    (86, 0),          // atomics on the host
    (88, 0),          // pageable memory
    (89, 1),          // managed memory used at once
    (90, 1),          // preemption
    (91, 1),          // registered memory at the host's address
    (95, 1),          // cooperative launches
    (97, 232_448),    // shared memory that a block can opt in to
    (99, 1),          // registers host memory
    (100, 0),         // pageable memory by the host's page tables
    (101, 0),         // managed memory directly from the host
    (102, 1),         // virtual memory
    (103, 0),         // handles as file descriptors
    (106, 32),        // blocks of a multiprocessor
    (110, 0),         // RDMA to virtual memory
    (115, 1),         // memory pools
    (116, 0),         // RDMA
    (121, 1),         // sparse arrays: as (102)
    (134, 0),         // NUMA node of the host
    (141, 1),         // virtual memory on a NUMA node of the host
    (142, 0),         // pools on a NUMA node of the host
    (145, 1),         // virtual memory on the host
];

fn attribute(device: &Device, number: c_int) -> c_int {
    let board = device.board;
    let found = SAME.iter().find(|(same, _)| *same == number);
    let [major, minor] = board.capability;
    match number {
        13 => (board.clocks[0] * 1000) as c_int,
        16 => board.cores[0] as c_int,
        33 => device.bus.into(),
        36 => (board.clocks[1] * 1000) as c_int,
        37 => board.bus_bits as c_int,
        75 => major,
        76 => minor,
        // What is not simulated is not there.
        _ => found.map_or(0, |(_, value)| *value),
    }
}

/// The greatest number of an attribute, in CUDA 13.
const LAST_ATTRIBUTE: c_int = 150;

cuda! {
    fn cuDeviceGet(out: Out<c_int>, ordinal: c_int) {
        device(ordinal)?;
        out.set(ordinal)
    }
    fn cuDeviceGetCount(out: Out<c_int>) {
        out.set(driver()?.devices.len() as c_int)
    }
    fn cuDeviceGetName(name: Chars, room: c_int, ordinal: c_int) {
        name.set(room, device(ordinal)?.board.name)
    }
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, ordinal: c_int) {
        uuid.set(device(ordinal)?.uuid)
    }
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, ordinal: c_int) {
        uuid.set(device(ordinal)?.uuid)
    }
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, ordinal: c_int) {
        bytes.set(device(ordinal)?.memory.capacity() as usize)
    }
    fn cuDeviceTotalMem(bytes: Out<c_uint>, ordinal: c_int) {
        let all = device(ordinal)?.memory.capacity();
        bytes.set(c_uint::try_from(all).unwrap_or(c_uint::MAX))
    }
    fn cuDeviceGetAttribute(value: Out<c_int>, number: c_int, ordinal: c_int) {
        let device = device(ordinal)?;
        if !(1..=LAST_ATTRIBUTE).contains(&number) {
            return Err(code::INVALID);
        }
        value.set(attribute(device, number))
    }
    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, ordinal: c_int) {
        let [first, second] = device(ordinal)?.board.capability;
        major.set(first)?;
        minor.set(second)
    }
    fn cuDeviceGetPCIBusId(name: Chars, room: c_int, ordinal: c_int) {
        name.set(room, &bus_id(device(ordinal)?))
    }
    fn cuDeviceGetByPCIBusId(out: Out<c_int>, name: Name) {
        let name = name.get()?.to_lowercase();
        let is = |device: &Arc<Device>| bus_id(device).ends_with(&name) && name.len() >= 7;
        let found = driver()?.devices.iter().position(is);
        out.set(found.ok_or(code::INVALID_DEVICE)? as c_int)
    }
    fn cuDeviceGetLuid(_luid: *mut c_char, _mask: Out<c_uint>, ordinal: c_int) {
        device(ordinal)?;
        // As the driver on Linux.
        Err(code::NOT_SUPPORTED)
    }
    fn cuDeviceCanAccessPeer(can: Out<c_int>, one: c_int, other: c_int) {
        device(one)?;
        device(other)?;
        can.set((one != other).into())
    }
    fn cuDeviceGetP2PAttribute(value: Out<c_int>, number: c_int, one: c_int, other: c_int) {
        device(one)?;
        device(other)?;
        match (one != other, number) {
            (false, _) => Err(code::INVALID_DEVICE),
            // Performance rank, access, native atomics, arrays.
            (true, 1..=4) => value.set((number == 2).into()),
            (true, _) => Err(code::INVALID),
        }
    }
}
