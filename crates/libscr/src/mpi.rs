//! The program's ranks, and the one agreement among them: the highest number that any of them has. It is an `MPI_Allreduce` of the MPI that the program
//! is linked with, found by name when the program runs, so that one libscr.so serves several MPIs.
//!
//! Two families are known. In Open MPI handles are pointers to its symbols. In MPICH and its relatives (Intel MPI, MVAPICH, Cray MPICH), which share an ABI,
//! they are numbers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use gpuos_program::Rank;

/// `MPI_MAX_LIBRARY_VERSION_STRING` is at most this much in all of them.
const LONGEST_VERSION: usize = 8192;

/// The ranks of the program.
pub(crate) enum World {
    /// A program of one process.
    Alone,
    /// All of `MPI_COMM_WORLD`.
    Mpi(Rank, Abi),
}

pub(crate) enum Abi {
    /// `MPI_COMM_WORLD` is the address of `ompi_mpi_comm_world`.
    Pointers(Functions<*mut c_void>),
    /// `MPI_COMM_WORLD` is 0x44000000.
    Numbers(Functions<c_int>),
}

// SAFETY: handles and functions are of the whole process. Which threads may call MPI is between the program and its MPI: no thread of ours does.
unsafe impl Send for Abi {}

/// What is used of an MPI whose handles are `H`.
pub(crate) struct Functions<H> {
    allreduce: unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H) -> c_int,
    free: unsafe extern "C" fn(*mut H) -> c_int,
    /// A copy of `MPI_COMM_WORLD`, so that nothing mixes with what the program sends.
    all: H,
    int: H,
    max: H,
}

impl World {
    /// The ranks of this process's program.
    ///
    /// # Errors
    ///
    /// A sentence: MPI is not between `MPI_Init` and `MPI_Finalize`, or not known, or there are several ranks and no MPI.
    pub(crate) fn find() -> Result<World, String> {
        // SAFETY: of that type in every MPI, as the next.
        let initialized =
            unsafe { function::<unsafe extern "C" fn(*mut c_int) -> c_int>(c"MPI_Initialized") };
        let Ok(initialized) = initialized else {
            let rank = Rank::from_environment().map_err(|error| error.to_string())?;
            return match rank.size() {
                1 => Ok(World::Alone),
                _ => Err(format!(
                    "this is {rank}, and there is no MPI in the program by which its ranks could agree: link it with a shared library of Open MPI or MPICH"
                )),
            };
        };
        // SAFETY: as above.
        let finalized =
            unsafe { function::<unsafe extern "C" fn(*mut c_int) -> c_int>(c"MPI_Finalized") }?;
        let (mut begun, mut ended) = (0, 0);
        // SAFETY: both may be called at any time, and the numbers outlive the calls.
        unsafe {
            initialized(&raw mut begun);
            finalized(&raw mut ended);
        }
        if begun == 0 || ended != 0 {
            return Err("call SCR_Init after MPI_Init and before MPI_Finalize".into());
        }
        World::of_mpi()
    }

    fn of_mpi() -> Result<World, String> {
        let world = symbol(c"ompi_mpi_comm_world");
        if !world.is_null() {
            let (int, max) = (symbol(c"ompi_mpi_int"), symbol(c"ompi_mpi_op_max"));
            if int.is_null() || max.is_null() {
                return Err("this Open MPI has no ompi_mpi_int or ompi_mpi_op_max".into());
            }
            // SAFETY: Open MPI's header defines MPI_COMM_WORLD, MPI_INT and MPI_MAX as these addresses.
            let (rank, functions) = unsafe { Functions::found(world, int, max) }?;
            return Ok(World::Mpi(rank, Abi::Pointers(functions)));
        }
        let version = version()?;
        let relatives = ["MPICH", "Intel(R) MPI", "MVAPICH"];
        if !relatives.iter().any(|name| version.contains(name)) {
            let line = version.lines().next().unwrap_or_default();
            return Err(format!(
                "of MPIs, this library knows Open MPI and those with MPICH's ABI, and this one is {line:?}"
            ));
        }
        // SAFETY: the common ABI of MPICH defines the three as these numbers.
        let (rank, functions) = unsafe { Functions::found(0x4400_0000, 0x4c00_0405, 0x5800_0001) }?;
        Ok(World::Mpi(rank, Abi::Numbers(functions)))
    }

    /// Which process this is.
    pub(crate) fn rank(&self) -> Rank {
        match self {
            World::Alone => Rank::ALONE,
            World::Mpi(rank, _) => *rank,
        }
    }

    /// In each place, the highest number that any rank has. All ranks call it, as often as each other.
    ///
    /// # Errors
    ///
    /// A sentence; mostly MPI ends the program instead.
    pub(crate) fn highest<const N: usize>(&self, own: [i32; N]) -> Result<[i32; N], String> {
        match self {
            World::Alone => Ok(own),
            World::Mpi(_, Abi::Pointers(functions)) => functions.highest(own),
            World::Mpi(_, Abi::Numbers(functions)) => functions.highest(own),
        }
    }
}

impl<H: Copy> Functions<H> {
    /// # Safety
    ///
    /// MPI is initialized, its handles are `H`, and these are `MPI_COMM_WORLD`, `MPI_INT` and `MPI_MAX`.
    unsafe fn found(world: H, int: H, max: H) -> Result<(Rank, Functions<H>), String> {
        type Ask<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
        // SAFETY: the types are of the MPI standard, for these handles.
        let (ask_rank, ask_size, copy, allreduce, free) = unsafe {
            (
                function::<Ask<H>>(c"MPI_Comm_rank")?,
                function::<Ask<H>>(c"MPI_Comm_size")?,
                function::<unsafe extern "C" fn(H, *mut H) -> c_int>(c"MPI_Comm_dup")?,
                function(c"MPI_Allreduce")?,
                function(c"MPI_Comm_free")?,
            )
        };
        let (mut rank, mut size, mut all) = (0, 0, world);
        // SAFETY: MPI is initialized, the handle is its own, and the places outlive the calls.
        let codes = unsafe {
            [
                ask_rank(world, &raw mut rank),
                ask_size(world, &raw mut size),
                copy(world, &raw mut all),
            ]
        };
        let number = |number: c_int| u64::try_from(number).unwrap_or(u64::MAX);
        let rank = Rank::new(number(rank), number(size)).map_err(|error| error.to_string())?;
        if codes != [0, 0, 0] {
            return Err(format!("MPI does not copy MPI_COMM_WORLD: {codes:?}"));
        }
        let functions = Functions {
            allreduce,
            free,
            all,
            int,
            max,
        };
        Ok((rank, functions))
    }

    fn highest<const N: usize>(&self, own: [i32; N]) -> Result<[i32; N], String> {
        let count = c_int::try_from(N).map_err(|error| error.to_string())?;
        let mut all = own;
        // SAFETY: both have room for `N` of MPI_INT, and the handles are MPI's own.
        let code = unsafe {
            (self.allreduce)(
                own.as_ptr().cast(),
                all.as_mut_ptr().cast(),
                count,
                self.int,
                self.max,
                self.all,
            )
        };
        match code {
            0 => Ok(all),
            code => Err(format!("MPI_Allreduce fails with code {code}")),
        }
    }
}

impl<H> Drop for Functions<H> {
    fn drop(&mut self) {
        // SAFETY: the communicator is of `MPI_Comm_dup`, and this is its last use; a program ends the session before it ends MPI.
        let _ = unsafe { (self.free)(&raw mut self.all) };
    }
}

/// What this MPI says of itself.
fn version() -> Result<String, String> {
    // SAFETY: of that type in every MPI since MPI 3.0.
    let ask = unsafe {
        function::<unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int>(
            c"MPI_Get_library_version",
        )
    }?;
    let mut text = vec![0_u8; LONGEST_VERSION];
    let mut length = 0;
    // SAFETY: the room is that of the longest text of any MPI.
    unsafe { ask(text.as_mut_ptr().cast(), &raw mut length) };
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

/// The address of a symbol that the program's libraries have; null: none of them.
fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a lookup by a name that ends with NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// A function by its name.
///
/// # Safety
///
/// `F` is a function pointer of the type that this function has.
unsafe fn function<F: Copy>(name: &CStr) -> Result<F, String> {
    let address = symbol(name);
    if address.is_null() || size_of::<F>() != size_of::<*mut c_void>() {
        return Err(format!(
            "the program's MPI has no {}",
            name.to_string_lossy()
        ));
    }
    // SAFETY: not null, and of that type by this function's contract.
    Ok(unsafe { ptr::read((&raw const address).cast::<F>()) })
}
