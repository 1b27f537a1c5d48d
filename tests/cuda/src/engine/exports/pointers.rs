//! What an address is.

use std::ffi::{c_uint, c_void};

use super::cuda;
use crate::abi::{Answer, MEMORY_DEVICE, MEMORY_HOST, code};
use crate::engine::context::current;
use crate::engine::driver::driver;
use crate::engine::heap::Kind;
use crate::memory::Place;
use crate::pointer::{In, give};
use crate::space::Backing;

/// The value of an attribute, as many bytes as it has.
fn value(number: c_uint, address: u64) -> Answer<Vec<u8>> {
    let driver = driver()?;
    let word = |value: u64| Ok(value.to_le_bytes().to_vec());
    let half = |value: u32| Ok(value.to_le_bytes().to_vec());
    let mapping = driver.space.look(address, |start, mapping| {
        let place = match &mapping.backing {
            Backing::Physical(physical, _) => physical.place(),
            Backing::Process => Place::Host,
        };
        (start, mapping.length, place)
    });
    let (base, size, place) = mapping.ok_or(code::INVALID)?;
    let allocation = driver.allocations.around(address);
    let kind = allocation.as_ref().map(|(_, found)| found.kind);
    match number {
        // Memory of virtual addresses belongs to no context.
        1 => word(allocation.map_or(0, |(_, found)| found.context)),
        2 => half(match place {
            Place::Host if kind != Some(Kind::Managed) => MEMORY_HOST,
            _ => MEMORY_DEVICE,
        }),
        3 => word(address),
        4 if place == Place::Host && !driver.space.holds(address) => word(address),
        4 => Err(code::INVALID),
        6 => half(0),
        7 => word(allocation.map_or(base, |(_, found)| found.id)),
        8 => half((kind == Some(Kind::Managed)).into()),
        9 => half(match (place, allocation) {
            (Place::Device(index), _) => index as u32,
            (Place::Host, Some((_, found))) => found.device as u32,
            // The host, where no device has the memory.
            (Place::Host, None) => -1_i32 as u32,
        }),
        10 | 15 => half(0),
        11 => word(allocation.map_or(base, |(start, _)| start)),
        12 => word(allocation.map_or(size, |(_, found)| found.length)),
        13 => half(1),
        14 => word(0),
        16 => half(3),
        17 => word(match kind {
            Some(Kind::Device(pool)) => pool,
            _ => 0,
        }),
        18 => word(size),
        19 => word(base),
        _ => Err(code::INVALID),
    }
}

/// Bytes of an attribute's value, for those that an address does not have.
fn width(number: c_uint) -> usize {
    match number {
        2 | 6 | 8 | 9 | 10 | 13 | 15 | 16 => 4,
        _ => 8,
    }
}

cuda! {
    fn cuPointerGetAttribute(data: *mut c_void, number: c_uint, address: u64) {
        current()?;
        give(data, &value(number, address)?)
    }
    fn cuPointerGetAttributes(count: c_uint, numbers: In<c_uint>, data: In<*mut c_void>, address: u64) {
        current()?;
        for index in 0..count as usize {
            let number = numbers.at(index)?;
            // An address that is none of CUDA's has zeros.
            let found = value(number, address).unwrap_or_else(|_| vec![0; width(number)]);
            give(data.at(index)?, &found)?;
        }
        Ok(())
    }
    fn cuPointerSetAttribute(_data: *const c_void, number: c_uint, address: u64) {
        current()?;
        value(number, address)?;
        // Synchronous copies are what copies are already.
        if number == 6 { Ok(()) } else { Err(code::INVALID) }
    }
}
