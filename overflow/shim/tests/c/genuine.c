// SPDX-License-Identifier: Apache-2.0
// A driver for tests: three calls, each with an answer of its own.

int cuInit(unsigned int flags)
{
	return flags ? 1 : 0;
}

int cuDriverGetVersion(int *version)
{
	*version = 12345;
	return 0;
}

int cuLaunchKernel_ptsz(void *function)
{
	return function ? 77 : 400;
}
