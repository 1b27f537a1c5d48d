! The counter of examples/checkpoint, in Fortran.
program counter
  use, intrinsic :: iso_c_binding
  use gpuos
  implicit none
  type(c_ptr) :: ckpt
  integer(c_int32_t) :: number
  integer(c_int) :: reason, rc
  integer :: count, limit, unit
  character(len=4096) :: folder
  character(len=32) :: argument

  call get_command_argument(1, argument)
  read (argument, *) limit
  count = 0
  number = 0
  ckpt = gpuos_ckpt_open(-1_c_long, -1_c_long)
  select case (gpuos_ckpt_join(ckpt, -1_c_long))
  case (GPUOS_CKPT_NEW)
    print '(a)', 'new'
  case (GPUOS_CKPT_RESTORE)
    if (gpuos_ckpt_restored(ckpt, number, folder) /= 0) error stop 1
    open (newunit=unit, file=trim(folder)//'/count', status='old')
    read (unit, *) count
    close (unit)
    print '(a,i0,a,i0)', 'restored checkpoint ', number, ' at ', count
  case default
    rc = gpuos_ckpt_message(ckpt, folder)
    print '(a)', trim(folder)
    error stop 1
  end select

  do while (count < limit)
    count = count + 1
    call execute_command_line('sleep 0.001')
    if (gpuos_ckpt_wanted(ckpt, number, reason) /= 1) cycle
    if (gpuos_ckpt_folder(ckpt, number, folder) /= 0) cycle
    open (newunit=unit, file=trim(folder)//'/count', status='replace')
    write (unit, '(i0)') count
    close (unit)
    if (gpuos_ckpt_ready(ckpt, number) /= 0) cycle
    print '(a,i0,a,i0)', 'saved ', number, ' at ', count
    if (reason == GPUOS_CKPT_END) then
      if (gpuos_ckpt_wait(ckpt, number, -1_c_long) /= GPUOS_CKPT_COMMITTED) error stop 1
      exit
    end if
  end do
  call gpuos_ckpt_close(ckpt)
end program counter
