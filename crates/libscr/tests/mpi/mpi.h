/* A stand-in for MPI, for machines without one: ranks of one machine, which meet in a file that FAKE_MPI names. With -DNUMBERS its handles are MPICH's, else
 * Open MPI's. It has what libscr.so and the tests use, and ends the program at any other argument. */
#ifndef FAKE_MPI_H
#define FAKE_MPI_H

#ifdef NUMBERS
typedef int MPI_Comm, MPI_Datatype, MPI_Op;
#define MPI_COMM_WORLD ((MPI_Comm)0x44000000)
#define MPI_INT ((MPI_Datatype)0x4c000405)
#define MPI_MAX ((MPI_Op)0x58000001)
#else
typedef struct fake_comm *MPI_Comm;
typedef struct fake_type *MPI_Datatype;
typedef struct fake_op *MPI_Op;
extern char ompi_mpi_comm_world[64], ompi_mpi_int[64], ompi_mpi_op_max[64];
#define MPI_COMM_WORLD ((MPI_Comm)(void *)ompi_mpi_comm_world)
#define MPI_INT ((MPI_Datatype)(void *)ompi_mpi_int)
#define MPI_MAX ((MPI_Op)(void *)ompi_mpi_op_max)
#endif

int MPI_Init(int *argc, char ***argv);
int MPI_Finalize(void);
int MPI_Initialized(int *flag);
int MPI_Finalized(int *flag);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy);
int MPI_Comm_free(MPI_Comm *comm);
int MPI_Allreduce(const void *own, void *all, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int MPI_Get_library_version(char *version, int *length);

#endif
