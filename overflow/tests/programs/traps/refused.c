// SPDX-License-Identifier: Apache-2.0
/* A call that overflow does not carry says so each time. */
#include "../check.h"

int main(void)
{
	start();
	for (int i = 0; i < 3; i++)
		WANT(cuCtxDetach(NULL) == CUDA_ERROR_NOT_SUPPORTED);
	printf("refused: 3 times\n");
	return 0;
}
