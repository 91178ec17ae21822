#include "client/column.h"
