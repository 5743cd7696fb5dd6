#define CAPSTAN_SDK_HASH "97cfab82a4c27ba4"
