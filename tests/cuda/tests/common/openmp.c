/* OpenMP's own calls for memory of a device, there and back; with an argument also a kernel. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    int gpu = omp_get_default_device(), host = omp_get_initial_device();
    size_t bytes = 48 << 20;
    unsigned *there = malloc(bytes), *back = calloc(1, bytes), sum = 0;
    for (size_t i = 0; i < bytes / 4; i++)
        there[i] = i * 2654435761u;

    printf("devices %d\n", omp_get_num_devices());
    void *first = omp_target_alloc(bytes, gpu), *second = omp_target_alloc(bytes, gpu);
    if (!first || !second || omp_target_memcpy(first, there, bytes, 0, 0, gpu, host)
        || omp_target_memcpy(second, first, bytes, 0, 0, gpu, gpu)
        || omp_target_memcpy(back, second, bytes, 0, 0, host, gpu))
        return 1;
    omp_target_free(first, gpu);
    omp_target_free(second, gpu);
    puts(memcmp(there, back, bytes) ? "differ" : "equal");

    if (argc > 1) {
#pragma omp target map(tofrom : sum)
        sum = 7;
        printf("sum %u\n", sum);
    }
    return 0;
}
