// SPDX-License-Identifier: Apache-2.0
/*
 * Says the version that is advertised, then for each line "NAME VERSION" of its standard input
 * where that is for a caller who was built for it, or 0.
 */
#include "../check.h"

int main(void)
{
	char name[128];
	int version = 0, since, status;

	start();
	CHECK(cuDriverGetVersion(&version));
	printf("%d\n", version);
	while (scanf("%127s %d", name, &since) == 2) {
		void *function = NULL;
		CUresult result = cuGetProcAddress(name, &function, since, 0, &status);

		WANT((result == CUDA_SUCCESS) == (function != NULL) && (status == 0) == !result);
		printf("%s %lx\n", name, (unsigned long)function);
	}
	return 0;
}
