/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Credentials of the role that a machine or a container at Amazon has, from services at fixed
 * addresses near it: that of the containers (ECS, EKS) and that of the instances (EC2, IMDSv2).
 */
#ifndef USERBLK_S3_INSTANCE_H
#define USERBLK_S3_INSTANCE_H

#include "backends/s3/client/credentials.h"

/*
 * Asks the containers' service if the environment names it, else the instances' unless the
 * environment forbids that. Waits: about a second where nobody answers, a few where somebody does
 * slowly. 0; -ENOENT: there is no such service, or no role; other negative errno: it did not give
 * credentials. error says why.
 */
int s3_instance_credentials(struct s3_credentials *credentials, struct params_error *error);

#endif
