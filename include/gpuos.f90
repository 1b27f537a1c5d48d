! gpuos.f90: checkpoints of a job, for programs in Fortran 2008. SPDX-License-Identifier: MIT OR Apache-2.0
!
! Compile this file with the program, and link with `pkg-config --libs gpuos`. Functions, results and reasons are those of gpuos.h, which
! explains them; texts are blank-padded, and limits are in milliseconds, negative for none.
!
!     type(c_ptr) :: ckpt
!     ckpt = gpuos_ckpt_open(-1_c_long, -1_c_long)
!     start = gpuos_ckpt_join(ckpt, -1_c_long)
!     if (start == GPUOS_CKPT_RESTORE) rc = gpuos_ckpt_restored(ckpt, number, folder)
!     ...
!     if (gpuos_ckpt_wanted(ckpt, number, reason) == 1) then
!        if (gpuos_ckpt_folder(ckpt, number, folder) == 0) then
!           ...                                     ! write files into trim(folder)
!           rc = gpuos_ckpt_ready(ckpt, number)
module gpuos
  use, intrinsic :: iso_c_binding, only: c_char, c_int, c_int32_t, c_long, c_null_char, c_ptr, c_size_t
  implicit none
  private

  integer(c_int), parameter, public :: GPUOS_CKPT_NEW = 0, GPUOS_CKPT_RESTORE = 1
  integer(c_int), parameter, public :: GPUOS_CKPT_PENDING = 0, GPUOS_CKPT_COMMITTED = 1
  integer(c_int), parameter, public :: GPUOS_CKPT_BEFORE_LOST = 1
  integer(c_int), parameter, public :: GPUOS_CKPT_ERROR = -1, GPUOS_CKPT_FAILED = -2, GPUOS_CKPT_TIMEOUT = -3
  integer(c_int), parameter, public :: GPUOS_CKPT_INTERVAL = 0, GPUOS_CKPT_ASKED = 1, GPUOS_CKPT_END = 2

  public :: gpuos_ckpt_open, gpuos_ckpt_close, gpuos_ckpt_available, gpuos_ckpt_rank, gpuos_ckpt_size, gpuos_ckpt_join
  public :: gpuos_ckpt_restored, gpuos_ckpt_wanted, gpuos_ckpt_folder, gpuos_ckpt_ready, gpuos_ckpt_outcome, gpuos_ckpt_wait
  public :: gpuos_ckpt_message, gpuos_ckpt_refuse, gpuos_ckpt_ask, gpuos_ckpt_any_ranks, gpuos_ckpt_restored_ranks
  public :: gpuos_ckpt_lost

  interface
    function gpuos_ckpt_open(rank, size) result(ckpt) bind(c, name='gpuos_ckpt_open')
      import :: c_long, c_ptr
      integer(c_long), value :: rank, size
      type(c_ptr) :: ckpt
    end function

    subroutine gpuos_ckpt_close(ckpt) bind(c, name='gpuos_ckpt_close')
      import :: c_ptr
      type(c_ptr), value :: ckpt
    end subroutine

    function gpuos_ckpt_available(ckpt) result(rc) bind(c, name='gpuos_ckpt_available')
      import :: c_int, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int) :: rc
    end function

    function gpuos_ckpt_rank(ckpt) result(rank) bind(c, name='gpuos_ckpt_rank')
      import :: c_int, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int) :: rank
    end function

    function gpuos_ckpt_size(ckpt) result(ranks) bind(c, name='gpuos_ckpt_size')
      import :: c_int, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int) :: ranks
    end function

    ! Before gpuos_ckpt_join: the program can begin from a checkpoint of any number of ranks.
    function gpuos_ckpt_any_ranks(ckpt) result(rc) bind(c, name='gpuos_ckpt_any_ranks')
      import :: c_int, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int) :: rc
    end function

    ! How many ranks have made what the program goes on from.
    function gpuos_ckpt_restored_ranks(ckpt) result(ranks) bind(c, name='gpuos_ckpt_restored_ranks')
      import :: c_int, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int) :: ranks
    end function

    function gpuos_ckpt_join(ckpt, limit_ms) result(start) bind(c, name='gpuos_ckpt_join')
      import :: c_int, c_long, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_long), value :: limit_ms
      integer(c_int) :: start
    end function

    ! GPUOS_CKPT_BEFORE_LOST: the checkpoint that this rank has saved last came to nothing, and which; gpuos_ckpt_message has the reason.
    function gpuos_ckpt_lost(ckpt, number) result(rc) bind(c, name='gpuos_ckpt_lost')
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int32_t), intent(inout) :: number
      integer(c_int) :: rc
    end function

    function gpuos_ckpt_wanted(ckpt, number, reason) result(wanted) bind(c, name='gpuos_ckpt_wanted')
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int32_t), intent(inout) :: number
      integer(c_int), intent(inout) :: reason
      integer(c_int) :: wanted
    end function

    ! why: a line for the user that ends with c_null_char.
    function gpuos_ckpt_refuse(ckpt, why) result(rc) bind(c, name='gpuos_ckpt_refuse')
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: ckpt
      character(kind=c_char), intent(in) :: why(*)
      integer(c_int) :: rc
    end function

    function gpuos_ckpt_ask(ckpt) result(rc) bind(c, name='gpuos_ckpt_ask')
      import :: c_int, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int) :: rc
    end function

    function gpuos_ckpt_ready(ckpt, number) result(rc) bind(c, name='gpuos_ckpt_ready')
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int32_t), value :: number
      integer(c_int) :: rc
    end function

    function gpuos_ckpt_outcome(ckpt, number) result(outcome) bind(c, name='gpuos_ckpt_outcome')
      import :: c_int, c_int32_t, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int32_t), value :: number
      integer(c_int) :: outcome
    end function

    function gpuos_ckpt_wait(ckpt, number, limit_ms) result(outcome) bind(c, name='gpuos_ckpt_wait')
      import :: c_int, c_int32_t, c_long, c_ptr
      type(c_ptr), value :: ckpt
      integer(c_int32_t), value :: number
      integer(c_long), value :: limit_ms
      integer(c_int) :: outcome
    end function

    function c_restored(ckpt, number, folder, size) result(rc) bind(c, name='gpuos_ckpt_restored')
      import :: c_char, c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: ckpt
      integer(c_int32_t), intent(inout) :: number
      character(kind=c_char), intent(inout) :: folder(*)
      integer(c_size_t), value :: size
      integer(c_int) :: rc
    end function

    function c_folder(ckpt, number, folder, size) result(rc) bind(c, name='gpuos_ckpt_folder')
      import :: c_char, c_int, c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: ckpt
      integer(c_int32_t), value :: number
      character(kind=c_char), intent(inout) :: folder(*)
      integer(c_size_t), value :: size
      integer(c_int) :: rc
    end function

    function c_message(ckpt, message, size) result(rc) bind(c, name='gpuos_ckpt_message')
      import :: c_char, c_int, c_ptr, c_size_t
      type(c_ptr), value :: ckpt
      character(kind=c_char), intent(inout) :: message(*)
      integer(c_size_t), value :: size
      integer(c_int) :: rc
    end function
  end interface

contains

  function gpuos_ckpt_restored(ckpt, number, folder) result(rc)
    type(c_ptr), intent(in) :: ckpt
    integer(c_int32_t), intent(inout) :: number
    character(len=*), intent(inout) :: folder
    integer(c_int) :: rc
    character(kind=c_char) :: buffer(len(folder) + 1)
    buffer = c_null_char
    rc = c_restored(ckpt, number, buffer, size(buffer, kind=c_size_t))
    if (rc == 0) call text(buffer, folder)
  end function

  function gpuos_ckpt_folder(ckpt, number, folder) result(rc)
    type(c_ptr), intent(in) :: ckpt
    integer(c_int32_t), intent(in) :: number
    character(len=*), intent(inout) :: folder
    integer(c_int) :: rc
    character(kind=c_char) :: buffer(len(folder) + 1)
    buffer = c_null_char
    rc = c_folder(ckpt, number, buffer, size(buffer, kind=c_size_t))
    if (rc == 0) call text(buffer, folder)
  end function

  function gpuos_ckpt_message(ckpt, message) result(rc)
    type(c_ptr), intent(in) :: ckpt
    character(len=*), intent(inout) :: message
    integer(c_int) :: rc
    character(kind=c_char) :: buffer(len(message) + 1)
    buffer = c_null_char
    rc = c_message(ckpt, buffer, size(buffer, kind=c_size_t))
    call text(buffer, message)
  end function

  subroutine text(buffer, into)
    character(kind=c_char), intent(in) :: buffer(:)
    character(len=*), intent(inout) :: into
    integer :: i
    into = ' '
    do i = 1, len(into)
      if (buffer(i) == c_null_char) exit
      into(i:i) = buffer(i)
    end do
  end subroutine
end module gpuos
