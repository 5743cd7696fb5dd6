// SPDX-License-Identifier: Apache-2.0
//
// A signature of a run's receipts by a key of the user's: RUN/receipts.sig.
#ifndef CAPSTAN_DESK_AUDIT_SIGNATURE_H_
#define CAPSTAN_DESK_AUDIT_SIGNATURE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

// What is signed: how far a chain has come.
struct SignedReceipts {
  int64_t step = 0;
  std::string chain;  // after it
  std::string seal;   // of its line
};

// FAILED_PRECONDITION if `path` exists and isn't a signature by the private key
// in `key`: Sign would replace it.
absl::Status CheckMaySign(const std::string& key, const std::string& path);

// Signs with the private key in the PEM file `key` (Ed25519, EC or RSA, without
// a passphrase) and writes `path`, which it replaces.
absl::Status Sign(const SignedReceipts& receipts, const std::string& key,
                  const std::string& path);

// What the signature at `path` is of. `key`: the PEM file of the public key.
// DATA_LOSS if it isn't this key's signature of what the file says.
absl::StatusOr<SignedReceipts> ReadSignature(const std::string& path,
                                             const std::string& key);

}  // namespace capstan

#endif  // CAPSTAN_DESK_AUDIT_SIGNATURE_H_
