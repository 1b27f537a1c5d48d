//! The self-check of node records and of what they have of a GRES.

use std::ffi::{CString, c_void};

use super::{
    Gres, Misfit, NODE_MAGIC, SANE_COUNT, Strings, bitmap_or_null, ensure, heap_string, pointer,
    states,
};
use crate::api::Api;
use crate::bits;
use crate::handles::NodeTable;
use crate::layout::Layout;
use crate::mem::{self, read, read_str};
use crate::sizes;

/// Checks a node record and its GRES state before their first use.
fn node(
    api: &Api,
    layout: &Layout,
    strings: &Strings,
    record: *mut c_void,
    gres: Gres,
) -> Result<(), String> {
    let at = record as usize;
    sizes::exactly(at, "node_record", layout.node.whole)?;
    ensure(
        read::<u32>(at + layout.node.magic) == Some(NODE_MAGIC),
        || "node record without its magic number".into(),
    )?;
    let name = read_str(pointer(at, layout.node.name)?, 256).ok_or("a node without a name")?;
    let c_name = CString::new(name.clone()).map_err(|_| "a node name with NUL")?;
    // SAFETY: node_record_t *find_node_record(char *), which only looks up.
    let found = unsafe { (api.find_node_record)(c_name.as_ptr()) };
    ensure(found == record, || {
        format!("node {name} is not the record that Slurm has under that name")
    })?;
    if let Some(extra) = layout.node_extra {
        heap_string(at, extra, &format!("the Extra of node {name}"))?;
    }
    if let Some(topology) = layout.node_topology {
        heap_string(at, topology, &format!("the topology of node {name}"))?;
    }
    let list = pointer(at, layout.node.gres_list)?;
    let whole = layout.gres_node.whole;
    for (id, data) in states(api, layout, strings, list, "gres_node_state", whole)? {
        if id == gres.id {
            node_gres(layout, data).map_err(|e| format!("node {name}: {e}"))?;
        }
    }
    Ok(())
}

fn node_gres(layout: &Layout, state: usize) -> Result<(), String> {
    let fields = &layout.gres_node;
    let available: u64 = read(state + fields.gres_cnt_avail).ok_or("unreadable GRES state")?;
    let allocated: u64 = read(state + fields.gres_cnt_alloc).ok_or("unreadable GRES state")?;
    ensure(
        available < SANE_COUNT && allocated <= available.max(SANE_COUNT),
        || format!("{allocated} of {available} units allocated"),
    )?;
    let map = pointer(state, fields.gres_bit_alloc)?;
    if map != 0 {
        let (_, set) = bits::probe(map).ok_or("gres_bit_alloc is not a bitmap")?;
        ensure(set as u64 == allocated, || {
            format!("{set} bits for {allocated} allocated units")
        })?;
    }
    let topologies =
        usize::from(read::<u16>(state + fields.topo_cnt).ok_or("unreadable topo_cnt")?);
    let types = usize::from(read::<u16>(state + fields.type_cnt).ok_or("unreadable type_cnt")?);
    ensure(topologies <= 1024 && types <= 1024, || {
        format!("topo_cnt {topologies}, type_cnt {types}")
    })?;
    let (maps, cores) = (
        pointer(state, fields.topo_gres_bitmap)?,
        pointer(state, fields.topo_core_bitmap)?,
    );
    let (used, had) = (
        pointer(state, fields.topo_gres_cnt_alloc)?,
        pointer(state, fields.topo_gres_cnt_avail)?,
    );
    let (names, ids) = (
        pointer(state, fields.topo_type_name)?,
        pointer(state, fields.topo_type_id)?,
    );
    for (array, each, what) in [
        (maps, 8, "topo_gres_bitmap"),
        (cores, 8, "topo_core_bitmap"),
        (used, 8, "topo_gres_cnt_alloc"),
        (had, 8, "topo_gres_cnt_avail"),
        (names, 8, "topo_type_name"),
        (ids, 4, "topo_type_id"),
    ] {
        sizes::array(array, topologies, each, what)?;
    }
    for index in 0..topologies {
        if maps != 0 {
            bitmap_or_null(pointer(maps, index * 8)?, "an entry of topo_gres_bitmap")?;
        }
        if cores != 0 {
            bitmap_or_null(pointer(cores, index * 8)?, "an entry of topo_core_bitmap")?;
        }
        let one: u64 = if used == 0 {
            0
        } else {
            read(used + index * 8).ok_or("unreadable topo_gres_cnt_alloc")?
        };
        let all: u64 = if had == 0 {
            one
        } else {
            read(had + index * 8).ok_or("unreadable topo_gres_cnt_avail")?
        };
        ensure(one <= all && all <= SANE_COUNT, || {
            format!("{one} of {all} units in a topology entry")
        })?;
        if names != 0 {
            let name = pointer(names, index * 8)?;
            ensure(name == 0 || read_str(name, 256).is_some(), || {
                "topo_type_name is not a string".into()
            })?;
        }
        ensure(ids == 0 || read::<u32>(ids + index * 4).is_some(), || {
            "topo_type_id is unreadable".into()
        })?;
    }
    let (counts, type_ids) = (
        pointer(state, fields.type_cnt_alloc)?,
        pointer(state, fields.type_id)?,
    );
    let type_names = pointer(state, fields.type_name)?;
    for (array, each, what) in [
        (counts, 8, "type_cnt_alloc"),
        (type_ids, 4, "type_id"),
        (type_names, 8, "type_name"),
    ] {
        sizes::array(array, types, each, what)?;
    }
    for index in 0..types {
        let count = if counts == 0 {
            Some(0)
        } else {
            read::<u64>(counts + index * 8)
        };
        ensure(count.is_some_and(|c| c <= SANE_COUNT), || {
            "type_cnt_alloc is unreadable".into()
        })?;
        ensure(
            type_ids == 0 || read::<u32>(type_ids + index * 4).is_some(),
            || "type_id is unreadable".into(),
        )?;
        if type_names != 0 {
            let name = pointer(type_names, index * 8)?;
            ensure(name == 0 || read_str(name, 256).is_some(), || {
                "type_name is not a string".into()
            })?;
        }
    }
    let len: i32 = read(state + fields.link_len).ok_or("unreadable link_len")?;
    ensure((0..=1024).contains(&len), || format!("link_len is {len}"))?;
    let links = pointer(state, fields.links_cnt)?;
    ensure(links != 0 || len == 0, || {
        "a link matrix without rows".into()
    })?;
    for row in 0..len as usize {
        let row = pointer(links, row * 8)?;
        let last = row + (len as usize - 1) * 4;
        ensure(
            row == 0 || (read::<i32>(row).is_some() && read::<i32>(last).is_some()),
            || "a row of the link matrix is unreadable".into(),
        )?;
    }
    Ok(())
}

/// So many nodes with GRES are all checked. They share one layout: of those after them one in [`ONE_IN`] is.
const EVERY_NODE_UP_TO: usize = 1024;
/// See [`EVERY_NODE_UP_TO`].
const ONE_IN: usize = 16;

/// Checks the nodes of the table: all of them up to [`EVERY_NODE_UP_TO`] with GRES, then one in [`ONE_IN`].
///
/// # Safety
/// The caller holds at least slurmctld's node read lock.
pub unsafe fn nodes(
    api: &Api,
    layout: &Layout,
    strings: &Strings,
    table: NodeTable,
    gres: Gres,
) -> Result<(), Misfit> {
    // Some 200 reads a node: one by one, those of 12,500 nodes took slurmctld 2.7 s.
    mem::in_blocks(|| {
        let mut sums = Sums::default();
        let (mut with_gres, mut since) = (0, 0);
        for index in 0..table.len() {
            // SAFETY: by the caller.
            let record = unsafe { table.raw(index) };
            if record.is_null() {
                continue;
            }
            since += 1;
            if with_gres >= EVERY_NODE_UP_TO && since < ONE_IN {
                continue;
            }
            since = 0;
            node(api, layout, strings, record, gres)?;
            sums.add(layout, record);
            let list = pointer(record as usize, layout.node.gres_list)?;
            with_gres += usize::from(list != 0);
        }
        Ok(sums.judge()?)
    })
}

/// Weights from here on are none of a node's own: 22.05 gives 0xfffffeff to nodes that are powered down.
const NOT_ITS_OWN: u64 = 0xffff_0000;

/// Sums that hold on a node as Slurm has it. A site can have a node on which one does not; where the table is wrong it
/// holds on none.
#[derive(Default)]
struct Sums {
    nodes: usize,
    /// Cores are those of all sockets.
    cores: usize,
    /// CPUs are one or some of each core, and those for jobs are among them.
    cpus: usize,
    /// There is memory.
    memory: usize,
    /// The weight that Slurm schedules by, where it has worked one out, and those that are made of the node's own.
    weighed: usize,
    weights: usize,
}

impl Sums {
    fn add(&mut self, layout: &Layout, record: *mut c_void) {
        let (at, fields) = (record as usize, &layout.node);
        let half = |offset: usize| u32::from(read::<u16>(at + offset).unwrap_or(0));
        let (sockets, cores) = (half(fields.tot_sockets), half(fields.cores));
        let total = half(fields.tot_cores);
        let (cpus, effective) = (half(fields.cpus), half(fields.cpus_efctv));
        let memory: u64 = read(at + fields.real_memory).unwrap_or(0);
        let weight: u32 = read(at + fields.weight).unwrap_or(0);
        let weighed: u64 = read(at + fields.sched_weight).unwrap_or(0);
        self.nodes += 1;
        self.cores += usize::from(total > 0 && total == sockets * cores);
        let whole = total > 0 && (cpus.is_multiple_of(total) || total.is_multiple_of(cpus));
        let of_each = half(fields.tpc) == (cpus / total.max(1)).max(1);
        self.cpus += usize::from(cpus > 0 && whole && of_each && effective <= cpus);
        // In MiB; no node comes near this.
        let kept: u64 = read(at + fields.mem_spec_limit).unwrap_or(u64::MAX);
        self.memory += usize::from((1..1 << 40).contains(&memory) && kept <= memory);
        // src/slurmctld/node_scheduler.c and, for a forecast, cons_tres put the weight 8 or 16 bits up. Nodes that are
        // powered down, or would have to be rebooted, get one near the largest of 32 bits instead of their own.
        if (1 << 8..NOT_ITS_OWN).contains(&weighed) {
            let own = |up: u32| (weighed >> up) as u32 == weight;
            self.weighed += 1;
            self.weights += usize::from(own(8) || own(16));
        }
    }

    fn judge(&self) -> Result<(), String> {
        for (holding, of, what) in [
            (self.cores, self.nodes, "as many cores as its sockets have"),
            (self.cpus, self.nodes, "CPUs that fit its cores"),
            (self.memory, self.nodes, "memory"),
            (
                self.weights,
                self.weighed,
                "the weight that it is scheduled by",
            ),
        ] {
            ensure(holding > 0 || of == 0, || format!("no node has {what}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Sums;

    #[test]
    fn one_node_that_fits_is_enough() {
        let good = Sums {
            nodes: 3,
            cores: 1,
            cpus: 3,
            memory: 2,
            weighed: 0,
            weights: 0,
        };
        assert_eq!(good.judge(), Ok(()));
        assert!(Sums { cores: 0, ..good }.judge().is_err());
    }
}
