// SPDX-License-Identifier: Apache-2.0
/* What the first calls answer where cuInit may fail: the version is there all the same, and nothing
 * else is. A driver says the same again.
 */
#include "../check.h"

int main(void)
{
	int version = 0, count = 0;
	CUdevice device = 0;
	CUresult told = cuDriverGetVersion(&version), first = cuInit(0), second = cuInit(0);

	WANT(told == CUDA_SUCCESS && version >= 11040);
	printf("cuInit: %d and %d; ", first, second);
	printf("then %d, %d\n", cuDeviceGetCount(&count), cuDeviceGet(&device, 0));
	return 0;
}
