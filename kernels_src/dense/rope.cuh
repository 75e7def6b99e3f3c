/* dense/rope.cuh: the angle of a rotary pair. The angle is reduced in two parts, so that positions of
 * millions keep the accuracy of sin and cos in f32. */
#ifndef CAIRN_ROPE_CUH
#define CAIRN_ROPE_CUH

struct rotation { float cosine, sine; };

/* The rotation at a position of a pair that makes `turns` turns of 2 pi from one to the next. */
CAIRN_INLINE rotation rotation_of(int position, double turns) {
    double whole = (double)position * turns;
    float angle = (float)((whole - floor_f64(whole)) * 6.283185307179586);
    rotation r;
    sin_cos(angle, &r.sine, &r.cosine);
    return r;
}

/* position * base^(-2 pair / rotary_dim), as cos and sin. */
CAIRN_INLINE rotation rope_rotation(int position, int pair, int rotary_dim, float base) {
    double frequency = pow_f64((double)base, -2.0 * pair / rotary_dim);
    return rotation_of(position, frequency * 0.15915494309189535); /* 1 / (2 pi) */
}

#endif
